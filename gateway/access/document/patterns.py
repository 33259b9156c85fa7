"""Model patterns of a rule: exact ids, `*` as a whole segment or at the end of one, labels. Pure.

Patterns meet catalog ids only, never a caller's raw string, and never fold case or normalize.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.access.document.vocabulary import AUTO_GRANT_LABEL
from gateway.flow.values import ModelCard


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    segments: tuple[str, ...]

    @property
    def wild(self) -> bool:
        return "*" in self.text

    def matches(self, model_id: str) -> bool:
        if not self.wild:
            return model_id == self.text
        if "*" in model_id:
            return False
        parts = model_id.split("/")
        if len(parts) != len(self.segments):
            return False
        return all(_segment(want, part) for want, part in zip(self.segments, parts, strict=True))


def _segment(want: str, part: str) -> bool:
    if want.endswith("*"):
        return part.startswith(want[:-1])
    return part == want


@dataclass(frozen=True, slots=True)
class ModelSelector:
    """`everything` or any of `exact` and `wild`, then all of `labels`.

    `known` bounds what wildcards and `everything` may reach: a model added to the catalog after the version was
    written needs the label `auto_grant: true`. Deny rules and selection by label alone have no such bound.
    """

    everything: bool
    exact: frozenset[str]
    wild: tuple[Pattern, ...]
    labels: tuple[tuple[str, str], ...]
    known: frozenset[str] | None

    def matches(self, card: ModelCard) -> bool:
        for name, value in self.labels:
            if card.labels.get(name) != value:
                return False
        if card.id in self.exact:
            return True
        if not (self.everything or any(pattern.matches(card.id) for pattern in self.wild)):
            return False
        return self.known is None or card.id in self.known or card.labels.get(AUTO_GRANT_LABEL) == "true"


def compile_pattern(text: str) -> Pattern:
    return Pattern(text, tuple(text.split("/")))
