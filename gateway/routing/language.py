"""The language of a text, offline: py3langid's classifier, and silence where it is not sure.

Its model is read once, when this is built; a text takes some tens of microseconds.
"""

from __future__ import annotations

from py3langid.langid import MODEL_FILE, LanguageIdentifier

READ = 600
"""Characters at the beginning of a text that are looked at."""
TOLD_APART = (
    *("en", "es", "pt", "fr", "de", "it", "nl", "pl", "ru", "uk", "tr", "ar"),
    *("zh", "ja", "ko", "vi", "th", "hi", "id"),
)
"""More languages would be less sure: a sentence in Spanish is nearly one in Galician too."""
SURE = 0.6
"""Least probability; greetings, formulas and code stay below."""


class LanguageDetector:
    def __init__(self) -> None:
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._identifier.set_languages(list(TOLD_APART))

    def detect(self, text: str) -> str | None:
        """An ISO 639-1 code, or None."""
        language, probability = self._identifier.classify(text[:READ])
        return str(language) if probability >= SURE else None
