"""The prefill budget of a step that also decodes, so that running streams do not stall. Learns from measured steps.

Model: a step takes `base` seconds for its decodes plus `per_token` seconds for each prefill token; both are moving
averages. Knows no sequences. Chunk sizes depend on the clock then; answers do not (see docs/concepts/engine.md).
"""

from __future__ import annotations

_WEIGHT = 0.1
_LEAST = 32
"""Prefill tokens that always pass: smaller chunks waste more time on reading weights than they save."""


_CROWD = 2
"""That many times more waiting than decoding: a stall for few is then the shorter wait for many, and nothing is held
back."""


class Pacer:
    """`factor`: a mixed step may take that many times a step that only decodes; 0 switches pacing off."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._base_s: float | None = None
        self._base_decodes = 0.0
        self._per_token_s: float | None = None

    def observe(self, decodes: int, prefill_tokens: int, seconds: float) -> None:
        """A step that took `seconds` in all. Steps without duration (a stopped clock) teach nothing."""
        if seconds <= 0.0 or not self._factor:
            return
        if not prefill_tokens:
            self._base_decodes = _average(self._base_decodes if self._base_s is not None else None, decodes)
            self._base_s = _average(self._base_s, seconds)
        elif not decodes:
            self._per_token_s = _average(self._per_token_s, seconds / prefill_tokens)
        elif prefill_tokens >= _LEAST and (base_s := self._base(decodes)) is not None:
            self._per_token_s = _average(self._per_token_s, max(0.0, seconds - base_s) / prefill_tokens)

    def most_prefill_tokens(self, decodes: int, prefills: int) -> int | None:
        """For a step in which `decodes` sequences decode while `prefills` wait for their first token; None while
        nothing is known or nothing is held back. Where more wait than decode, the factor grows in that proportion."""
        base_s = self._base(decodes)
        if not self._factor or base_s is None or not self._per_token_s or prefills >= _CROWD * decodes:
            return None
        factor = self._factor * max(1.0, prefills / max(1, decodes))
        return max(_LEAST, int((factor - 1.0) * base_s / self._per_token_s))

    def _base(self, decodes: int) -> float | None:
        """A step that only decodes so many. Its measured like may have had another number: a row costs about a token
        of prefill."""
        if self._base_s is None:
            return None
        return max(self._base_s / 2, self._base_s + (decodes - self._base_decodes) * (self._per_token_s or 0.0))


def _average(known: float | None, value: float) -> float:
    return value if known is None else known + _WEIGHT * (value - known)
