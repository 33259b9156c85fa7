"""When the newest token ends a sequence. Pure; knows tokens and grammar. Stop strings are the detokenizer's."""

from __future__ import annotations

from engine.requests import FinishReason
from engine.sequence import Sequence

Ending = tuple[FinishReason, str | int | None]


def ending_of(sequence: Sequence, eos_token_ids: frozenset[int]) -> Ending | None:
    """(reason, stop_reason) if the last token ends the sequence, else None.

    EOS and stop ids count only after `min_tokens`. A grammar that can take no more text ends with `stop`; running out
    of tokens first is `length`, so that a truncated document is never called complete.
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
    return None
