"""Decides which convention a file behaves like: pure functions over the numbers of the probes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log

from engine.verification.report import ConventionReport

V1 = "gptq v1 (zero points minus 1)"
V2 = "gptq v2 (zero points as they are)"
ASYMMETRIC = "asymmetric "
"""Before `V1` and `V2` where a file that calls itself symmetric is read with its zero points."""
VARIED = "varied"
"""Zero points that are not all the same."""

KNOWN = 0.75
"""A model that knows the text at all has a loss below this part of that of guessing among all tokens."""
CLEAR = 0.2
"""Nats a token that one way to read must be better by than the declared one."""
OFF_CENTER = 0.5
"""Steps of the codes by which the mean of the declared reading is further from its zero points than that of another."""


def decide(
    conventions: Sequence[ConventionReport], vocabulary: int, zero_words: Collection[str] = ()
) -> tuple[str | None, str]:
    """(the real convention or None, what decided: `text`, `weights`, `words` or `nothing`). The first one is declared.

    `zero_words`: what was found in the zero points of symmetric GPTQ.
    """
    declared = conventions[0]
    if VARIED in zero_words:
        # Nobody stores other zero points than one where there is but one.
        asymmetric = [c for c in conventions if c.name.startswith(ASYMMETRIC)]
        if asymmetric:
            real, _ = _by_numbers(asymmetric, vocabulary)
            return real or asymmetric[0].name, "words"
    real, decided_by = _by_numbers(conventions, vocabulary)
    if len(zero_words) == 1 and real in (declared.name, None):
        (words,) = zero_words
        if words != declared.name:
            return words, "words"
    return real, decided_by


def _by_numbers(conventions: Sequence[ConventionReport], vocabulary: int) -> tuple[str | None, str]:
    """Readings that the text hardly tells apart (8-bit zero points, an untrained model) differ in where the mean of the
    weights lies: trained or random, it is near 0, and a zero point read wrong by 1 moves it by a whole step."""
    declared = conventions[0]
    best = min(conventions, key=lambda convention: convention.loss)
    known = best.loss < KNOWN * log(vocabulary)
    if known and declared.loss - best.loss > CLEAR:
        return best.name, "text"
    alike = [c for c in conventions if c.bias is not None and (not known or c.loss - best.loss <= CLEAR)]
    if declared.bias is not None and alike:
        # The declared one comes first, so that nothing else is chosen where both are alike.
        centered = min(alike, key=lambda convention: abs(convention.bias or 0.0))
        if abs(declared.bias) - abs(centered.bias or 0.0) > OFF_CENTER:
            return centered.name, "weights"
    return (declared.name, "text") if known else (None, "nothing")
