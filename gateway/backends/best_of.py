"""`best_of`: more answers are made than are given, and the likeliest are chosen once all have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from math import inf

from gateway.backends.several_prompts import OneAnswer, numbered
from gateway.flow.values import ChoiceEnd, Chunk, Delta, Usage


class BestOfAnswer:
    """The `n` choices with the highest mean log-probability per token, likeliest first. All of them are paid for."""

    def __init__(self, answer: OneAnswer, n: int) -> None:
        self._answer, self._n = answer, n
        self._made: dict[int, list[Delta | ChoiceEnd]] = {}
        self._ready: deque[Chunk] | None = None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while self._ready is None:
            try:
                chunk = await self._answer.__anext__()
            except StopAsyncIteration:
                self._ready = deque(self._chosen())
                break
            if not isinstance(chunk, Delta | ChoiceEnd):
                return chunk
            self._made.setdefault(chunk.index, []).append(chunk)
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def aclose(self) -> None:
        await self._answer.aclose()

    def used(self) -> Usage:
        return self._answer.used()

    def _chosen(self) -> list[Chunk]:
        best = sorted(self._made.values(), key=lambda chunks: -likelihood(chunks[-1]))[: self._n]
        return [numbered(chunk, index - chunk.index) for index, chunks in enumerate(best) for chunk in chunks]


def likelihood(end: Delta | ChoiceEnd) -> float:
    """The mean log-probability of a choice's tokens, by its end; the least where it is not known."""
    if not isinstance(end, ChoiceEnd) or end.signals is None or end.signals.mean_logprob is None:
        return -inf
    return end.signals.mean_logprob
