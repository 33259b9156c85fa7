"""A completion of several prompts: one answer for each of them, told as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.flow.values import ChoiceEnd, Chunk, Delta, PromptLogprobs, Usage, UsageReport


class OneAnswer(Protocol):
    """The answer to one prompt."""

    async def __anext__(self) -> Chunk: ...

    async def aclose(self) -> None: ...

    def used(self) -> Usage: ...


class JoinedAnswer:
    """Chunks as they come; the choices of the first prompt are numbered first, as OpenAI's API has them.

    Usage is reported once, for all. An error of one prompt is the error of the request.
    """

    def __init__(self, answers: Sequence[OneAnswer], choices_each: int) -> None:
        self._answers, self._each = answers, choices_each
        self._reading: dict[asyncio.Task[Chunk | None], int] = {}
        self._open = set(range(len(answers)))
        self._ready: deque[Chunk] = deque()
        self._usage: Usage | None = None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            if not self._open:
                raise StopAsyncIteration
            for index in self._open.difference(self._reading.values()):
                self._reading[asyncio.create_task(_next(self._answers[index]))] = index
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=self._reading.__getitem__):
                self._take(self._reading.pop(task), task.result())
        return self._ready.popleft()

    def _take(self, prompt: int, chunk: Chunk | None) -> None:
        match chunk:
            case None:
                self._open.discard(prompt)
                if not self._open and self._usage is not None:
                    self._ready.append(UsageReport(self._usage))
            case UsageReport(usage=usage):
                self._usage = usage if self._usage is None else summed(self._usage, usage)
            case _:
                self._ready.append(numbered(chunk, prompt * self._each))

    async def aclose(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._reading.clear()
        await asyncio.gather(*(answer.aclose() for answer in self._answers))

    def used(self) -> Usage:
        usage = Usage()
        for answer in self._answers:
            usage = summed(usage, answer.used())
        return usage


async def _next(answer: OneAnswer) -> Chunk | None:
    try:
        return await answer.__anext__()
    except StopAsyncIteration:
        return None


def numbered(chunk: Chunk, first: int) -> Chunk:
    """The chunk of a choice with its number among all."""
    match chunk:
        case Delta() | PromptLogprobs():
            return replace(chunk, index=first + chunk.index)
        case ChoiceEnd(last=last):
            return replace(chunk, last=replace(last, index=first + last.index))
    return chunk


def summed(one: Usage, other: Usage) -> Usage:
    return replace(
        one,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
