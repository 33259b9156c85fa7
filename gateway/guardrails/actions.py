"""The action a policy wants for each kind of finding, and the tally of actions taken. Pure.

| `redaction` | proven by form or check digits | only looks like it |
|---|---|---|
| `off` | not looked for | not looked for |
| `flag` | flagged | flagged |
| `redact` | redacted | redacted |
| `block` | refused | redacted |

| `guardrails` | phrases that steer | what cannot be inspected |
|---|---|---|
| `off` | not looked for | passes, on record |
| `default` | flagged | passes where policy only flags, else refused |
| `strict` | refused | refused |
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from gateway.flow.values import Finding, Obligations
from gateway.guardrails.phrases import NAME as PHRASES
from gateway.guardrails.spans import Span

GuardrailAction = Literal["flag", "redact", "block"]
NOT_INSPECTED = "not_inspected"
"""The category of a text that could not be looked at. Never to be taken for a clean one."""


@dataclass(frozen=True, slots=True)
class GuardrailActions:
    """None: not looked for."""

    proven: GuardrailAction | None
    likely: GuardrailAction | None
    phrases: GuardrailAction | None
    closed: bool
    """A text that cannot be inspected is refused."""

    @property
    def rewrites(self) -> bool:
        """The text may be changed or stopped, so nothing of it may leave before it was inspected."""
        return self.proven in ("redact", "block")

    def act(self, span: Span) -> GuardrailAction:
        return (self.proven if span.certain else self.likely) or "flag"


def actions_of(obligations: Obligations) -> GuardrailActions | None:
    """None where the policy asks for no inspection."""
    redaction, guardrails = obligations.redaction, obligations.guardrails
    proven: GuardrailAction | None = None if redaction == "off" else redaction
    if proven is None and guardrails != "strict":
        return None
    phrases: GuardrailAction | None = None if guardrails == "off" else "block" if guardrails == "strict" else "flag"
    changes = proven in ("redact", "block")
    return GuardrailActions(
        proven=proven,
        likely="redact" if changes else proven,
        phrases=phrases,
        closed=guardrails == "strict" or (changes and guardrails != "off"),
    )


@dataclass(slots=True)
class Tally:
    """The findings, counted by kind, action and place; never with the text."""

    direction: Literal["in", "out"]
    _counts: Counter[tuple[str, str, GuardrailAction, bool, str]] = field(default_factory=Counter)

    def add(
        self, detector: str, category: str, act: GuardrailAction, *, certain: bool, where: str, count: int = 1
    ) -> None:
        self._counts[detector, category, act, certain, where] += count

    def span(self, span: Span, act: GuardrailAction, where: str) -> None:
        self.add(span.detector, span.category, act, certain=span.certain, where=where)

    def not_inspected(self, where: str, act: GuardrailAction = "flag") -> None:
        self.add("inspector", NOT_INSPECTED, act, certain=True, where=where)

    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(detector, category, count, act, self.direction, score=_score(detector, certain), where=where)
            for (detector, category, act, certain, where), count in self._counts.items()
        )


def _score(detector: str, certain: bool) -> float:
    if certain:
        return 1.0
    return 0.5 if detector == PHRASES else 0.7
