"""Stop conditions on the newest token of a sequence, and the detection of a text that repeats itself. Pure."""

from __future__ import annotations

from collections import abc

from engine.requests import FinishReason
from engine.scheduling.repetition import RepetitionGuard
from engine.sequence import Sequence

_LONGEST_PERIOD = 32
_REPEATS = 4
_SHORTEST_LOOP = 16


def is_looping(tokens: abc.Sequence[int], shortest: int = _SHORTEST_LOOP) -> bool:
    """True if the tail repeats one block of up to 32 tokens at least 4 times over at least `shortest` tokens."""
    count = len(tokens)
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_REPEATS * period, shortest)
        if length > count:
            break
        tail = tokens[count - length :]
        if all(tail[i] == tail[i - period] for i in range(length - 1, period - 1, -1)):
            return True
    return False


REPETITION = "repetition"
Ending = tuple[FinishReason, str | int | None]


def ending_of(sequence: Sequence, eos_token_ids: frozenset[int]) -> Ending | None:
    """(reason, stop_reason) if the last token ends the sequence, else None.

    EOS and stop ids count only after `min_tokens`. A grammar that can take no more text ends with `stop`; running out
    of tokens first is `length`, so that a truncated document is never called complete; so is a text that is cut
    because it repeats itself.
    """
    token, sampling = sequence.token_ids[-1], sequence.sampling
    num_output = len(sequence.token_ids) - sequence.num_prompt_tokens
    if num_output > sampling.min_tokens:
        if token in eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if token in sampling.stop_token_ids:
            return FinishReason.STOP, token
    if sequence.grammar is not None and sequence.grammar.is_terminated:
        return FinishReason.STOP, None
    if num_output >= sequence.max_tokens:
        return FinishReason.LENGTH, None
    if sampling.stop_on_repetition and _is_hopeless(sequence):
        return FinishReason.LENGTH, REPETITION
    return None


def _is_hopeless(sequence: Sequence) -> bool:
    """`ignore_eos` is for measurements, which get every token."""
    if sequence.sampling.ignore_eos:
        return False
    guard: RepetitionGuard | None = sequence.repetition
    if guard is None:
        guard = sequence.repetition = RepetitionGuard()
    return guard.loops(sequence.token_ids, sequence.num_prompt_tokens)
