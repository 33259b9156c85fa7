"""The same text as a detector reads it: look-alike signs made plain. Pure.

`folded` keeps every sign in its place, for finding spans; `plain_words` does not, for finding phrases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from gateway.guardrails.lookalikes import plain_form

_CHANGED_LATIN_1 = bytes(code for code in range(256) if code not in b"\t\n\r" and plain_form(chr(code)) != chr(code))
_ESCAPES = re.compile(r"\\[nrt]")
_TERMINAL = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
"""Colors and movements of a terminal, as they stand in copied logs."""
_DELETED = re.compile(r"[^\n\x08]\x08")
_RAISED = "\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089"
_NOTES = re.compile(f"(?<=[0-9A-Za-z])[{_RAISED}]+")
_TAGS = re.compile("[\U000e0020-\U000e007e]")
_ACCENTS = {
    **dict.fromkeys("¡¿«»“”‘’…·—–", " "),
    **dict(zip("áéíóúüñàèìòùâêîôûãõçäëïö", "aeiouunaeiouaeiouaocaeio", strict=True)),
}
"""The common case at once; what is left goes through Unicode's own tables."""
_LATIN = str.maketrans("абвеіјкмнорсѕтухԁԛԝνοαι", "abbeijkmhopcstyxdqwvoai")
"""Cyrillic and Greek letters that look like Latin ones, for words that are otherwise Latin."""
_MIXED = re.compile("[a-z][а-яіјѕԁԛԝα-ω]|[а-яіјѕԁԛԝα-ω][a-z]")
_LEET = str.maketrans("013457@$", "oieastas")
_DISGUISES = re.compile("[013457@$]+")
_GAPS = re.compile(r"[^\w@$]+")


Reading = tuple[str, list[int] | None]
"""A text in plain form, and for each sign the place in the original it came from (None: the places are the same)."""


def folded(text: str) -> Reading:
    """The usual reading. Foreign and framed digits become ASCII, dashes `-`, spaces and line breaks plain ones,
    look-alike letters Latin; what cannot be seen is left out.
    """
    if "\\" in text:
        text = _ESCAPES.sub("  ", text)
    if "\x1b" in text:
        text = _TERMINAL.sub(lambda found: "\0" * len(found[0]), text)
    if _nothing_to_fold(text):
        return text, None
    forms = {sign: plain_form(sign) for sign in set(text)}
    changed = {ord(sign): form for sign, form in forms.items() if form != sign}
    if not changed:
        return text, None
    if all(len(form) == 1 for form in changed.values()):
        return text.translate(changed), None
    places = [place for place, sign in enumerate(text) for _ in forms[sign]]
    return text.translate(changed), places


def readings(text: str) -> Iterator[Reading]:
    """All ways in which `text` may be read: as usual, without signs that were deleted again, without raised notes
    behind a number, and with the text that is written in tag characters."""
    yield folded(text)
    if "\x08" in text:
        yield folded(_DELETED.sub("\0\0", text))
    if text.isascii():
        return
    if _NOTES.search(text):
        yield folded(_NOTES.sub(lambda found: "\0" * len(found[0]), text))
    if _TAGS.search(text):
        yield folded(_TAGS.sub(lambda found: chr(ord(found[0]) - 0xE0000), text))


def last_readable(text: str, size: int) -> str:
    """The end of `text` with `size` signs that some reading shows, without most of what none shows."""
    end = text[-size:]
    if _nothing_to_fold(end):
        return end
    kept, seen = list[str](), 0
    for sign in reversed(text):
        shown = plain_form(sign) != ""
        if shown or _TAGS.match(sign) or sign in "\x08\x1b":
            kept.append(sign)
            seen += shown
        if seen == size or len(kept) == 4 * size:
            break
    return "".join(reversed(kept))


def _nothing_to_fold(text: str) -> bool:
    """Western European letters: the usual case, told at the price of a copy."""
    try:
        signs = text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return len(signs.translate(None, _CHANGED_LATIN_1)) == len(signs)


def lowered(text: str) -> str:
    """In lower case, sign by sign: `İ`, whose lower case is two signs, stays as it is."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join([s if len(s.lower()) > 1 else s.lower() for s in text])


def plain_words(text: str) -> str:
    """Lower-case words with single spaces: NFKC, no accents, no invisible signs, no punctuation, no markup."""
    text = text.lower()
    if not text.isascii():
        for sign in _ACCENTS.keys() & set(text):
            text = text.replace(sign, _ACCENTS[sign])
    if not (text.isascii() and _nothing_to_fold(text)):
        for sign in {sign for sign in set(text) if not plain_form(sign)}:
            text = text.replace(sign, "")
        text = unicodedata.normalize("NFKC", text)
        text = "".join([sign for sign in unicodedata.normalize("NFD", text) if not unicodedata.combining(sign)])
        text = text.casefold()
        text = text.translate(_LATIN) if _MIXED.search(text) else text
    return _GAPS.sub(" ", text.replace("_", " "))


def undisguised(words: str) -> str | None:
    """`1gn0r3` read as `ignore`; None where no such digit touches a letter."""
    for found in _DISGUISES.finditer(words):
        start, end = found.span()
        if words[start - 1 : start].isalpha() or words[end : end + 1].isalpha():
            return words.translate(_LEET)
    return None
