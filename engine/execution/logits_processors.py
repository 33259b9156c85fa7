"""Logits processors of one sequence, applied before a token is drawn, and their state between steps.

Order (as documented): allowed ids, bad words, min_tokens, grammar mask, logit_bias, penalties. The grammar mask is
applied by the sampler for all rows at once; that it comes first there changes nothing, because every mask is final:
no later step makes a forbidden token possible again. State follows from the sequence's tokens alone, so chunks and
preemptions cannot count anything twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvalidInput
from engine.requests import SamplingParams
from engine.step import SequenceView
from kernels.contracts import Ops

_FORBIDDEN = float("-inf")


def needs_processing(sequence: SequenceView) -> bool:
    """False for the common request whose logits are drawn from as they are."""
    params = sequence.sampling
    return bool(
        params.allowed_token_ids is not None
        or sequence.bad_word_ids
        or params.min_tokens
        or sequence.grammar is not None
        or params.logit_bias
        or has_penalties(params)
    )


def contradiction(sequence: SequenceView) -> InvalidInput:
    """The caller's masks left no token to choose: names the first of them, and the others."""
    params = sequence.sampling
    masks = {
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(sequence.bad_word_ids),
        "min_tokens": params.min_tokens > 0,
        "grammar": sequence.grammar is not None,
    }
    first, *others = [name for name, used in masks.items() if used] or ["grammar"]
    beside = f" beside {', '.join(f'`{name}`' for name in others)}" if others else ""
    made = len(sequence.token_ids) - sequence.num_prompt_tokens
    return InvalidInput(first, "contradictory", f"no token is allowed after {made} tokens{beside}")


def has_penalties(params: SamplingParams) -> bool:
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


class TokenCounts:
    """The distinct tokens of one sequence and how often each was generated; prompt-only tokens count 0."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt, self._seen = num_prompt_tokens, 0
        self._place: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._counts: NDArray[np.float32] = np.zeros(64, dtype=np.float32)

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Count the tokens that were appended since the last call."""
        for position in range(self._seen, len(token_ids)):
            place = self._place_of(token_ids[position])
            if position >= self._num_prompt:
                self._counts[place] += 1.0
        self._seen = len(token_ids)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        size = len(self._place)
        return self._ids[:size], self._counts[:size]

    def _place_of(self, token_id: int) -> int:
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token_id
        return place


class RowProcessor:
    """All processors of one sequence while it holds a slot."""

    def __init__(self, sequence: SequenceView, eos_token_ids: frozenset[int], device: torch.device) -> None:
        params = sequence.sampling
        self._sequence, self._device = sequence, device
        self._allowed = self._index(params.allowed_token_ids)
        self._endings = self._index(tuple(eos_token_ids | set(params.stop_token_ids))) if params.min_tokens else None
        self._biased = self._index(tuple(params.logit_bias)) if params.logit_bias else None
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)
        self._counts = TokenCounts(sequence.num_prompt_tokens) if has_penalties(params) else None

        self.may_forbid = bool(
            self._allowed is not None or sequence.bad_word_ids or params.min_tokens or sequence.grammar is not None
        )
        """Whether masks could leave no token at all."""

    def apply(self, row: Tensor) -> None:
        """Masks and bias: change `row`, float32 [vocab], in place. Raises IndexError for an id outside of it."""
        params = self._sequence.sampling
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill_(_FORBIDDEN)
            row[self._allowed] = kept
        for banned in self._banned_words():
            row[banned] = _FORBIDDEN
        if self._endings is not None and self._num_generated < params.min_tokens:
            row[self._endings] = _FORBIDDEN
        if self._biased is not None:
            row[self._biased] += self._bias

    def counts(self) -> TokenCounts | None:
        """Up to date with the sequence; None where there is no penalty."""
        if self._counts is not None:
            self._counts.catch_up(self._sequence.token_ids)
        return self._counts

    @property
    def params(self) -> SamplingParams:
        return self._sequence.sampling

    @property
    def _num_generated(self) -> int:
        return len(self._sequence.token_ids) - self._sequence.num_prompt_tokens

    def _index(self, ids: Sequence[int] | None) -> Tensor | None:
        return None if ids is None else torch.tensor(list(ids), dtype=torch.int64, device=self._device)

    def _banned_words(self) -> list[int]:
        """The last token of each bad word whose other tokens were just generated."""
        tokens, banned = self._sequence.token_ids, []
        for word in self._sequence.bad_word_ids:
            lead = len(word) - 1
            if lead <= self._num_generated and tuple(tokens[len(tokens) - lead :]) == word[:-1]:
                banned.append(word[-1])
        return banned


def penalize(ops: Ops, logits: Tensor, processors: Sequence[tuple[int, RowProcessor]]) -> None:
    """Penalties of all rows at once, in place: `processors` are (row of `logits` [rows, vocab], its processor).

    Repetition covers prompt and output; presence and frequency the output only.
    """
    counted = [(row, processor.params, counts) for row, processor in processors if (counts := processor.counts())]
    if not counted:
        return
    pairs = [counts.arrays() for _, _, counts in counted]

    def there(values: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(logits.device)

    def each(values: list[float]) -> Tensor:
        return there(np.array(values, dtype=np.float32))

    ops.apply_penalties(
        logits,
        there(np.array([row for row, _, _ in counted], dtype=np.int64)),
        there(np.cumsum([0, *(len(ids) for ids, _ in pairs)], dtype=np.int64)),
        there(np.concatenate([ids for ids, _ in pairs])),
        there(np.concatenate([times for _, times in pairs])),
        each([params.repetition_penalty for _, params, _ in counted]),
        each([params.frequency_penalty for _, params, _ in counted]),
        each([params.presence_penalty for _, params, _ in counted]),
    )
