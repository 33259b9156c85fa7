"""The workload that every system gets: random token ids, fixed lengths, drawn the same way everywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_ID, LAST_ID = 3, 49_000
"""Ids both demo vocabularies have, special tokens left out."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    prompt_token_ids: tuple[int, ...]
    output_tokens: int


def draw(requests: int, min_len: int, max_len: int, seed: int) -> tuple[BenchRequest, ...]:
    """Per request, from one `random.Random(seed)`: prompt length, that many ids, then the output length."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(requests):
        length = rng.randint(min_len, max_len)
        ids = tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(length))
        drawn.append(BenchRequest(ids, rng.randint(min_len, max_len)))
    return tuple(drawn)
