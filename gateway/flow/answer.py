"""A running answer: governed chunks out, and one finalizer that always runs.

Between two chunks the gateway asks whether the caller still may go on: a revoked principal, a policy that no longer
allows it or a spent grant stops the sequence at that token. Settlement and the completion record are shielded: a
disconnect, a cancellation or a crash of the backend cannot skip them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from gateway.errors import GatewayError
from gateway.flow.boundary import BOUNDARY, Finalizers, close
from gateway.flow.context import Clock
from gateway.flow.metering import Meter, echoed_bytes, used_so_far
from gateway.flow.parts import Content
from gateway.flow.ports import OutputGuard
from gateway.flow.refusals import blocked
from gateway.flow.stages import Concluded, Reserved
from gateway.flow.transcript import Transcript
from gateway.flow.values import (
    ChoiceEnd,
    Chunk,
    Delta,
    Failure,
    Finding,
    Outcome,
    Signals,
    TextDelta,
    Usage,
    UsageReport,
)

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Completion:
    """How a request ended, before it is settled and priced."""

    outcome: Outcome
    status: int
    usage: Usage = NO_USAGE
    signals: Signals | None = None
    finish_reason: str | None = None
    stop_cause: str | None = None
    failure: Failure | None = None
    findings: tuple[Finding, ...] = ()
    """What was found in the answer."""
    response_digest: bytes | None = None
    completion_contents: tuple[Content, ...] | None = None
    """By choice."""
    tool_calls: int = 0
    first_chunk_s: float | None = None
    """On the clock of `Clock.monotonic_s`."""


Conclude = Callable[[Reserved, Completion], Coroutine[Any, Any, Concluded]]
"""Settle and record. Runs shielded."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What an answer has cost; nothing before its end."""

    usage: Usage = NO_USAGE
    cost_micro: int = 0


@dataclass(frozen=True, slots=True)
class StopConditions:
    """What may stop a running answer."""

    revoked: Callable[[], bool]
    gone: Callable[[], bool]
    """True once the client has hung up."""
    permitted: Callable[[], bool]
    """False once a newer policy no longer allows this request on this model."""
    granted_tokens: int
    """Per choice."""
    clamped: bool
    """True when a budget granted less than the caller asked for."""
    deadline_s: float | None = None
    """On the clock of `Clock.monotonic_s`; for backends that keep none of their own."""


class Answer:
    """Iterate it once; use it as a context manager, which closes what is still open.

    `bill` and `stop_cause` are known once the iteration has ended.
    """

    def __init__(
        self,
        reserved: Reserved,
        stream: AsyncIterator[Chunk],
        first: Chunk | None,
        conditions: StopConditions,
        conclude: Conclude,
        finalizers: Finalizers,
        clock: Clock,
        guard: OutputGuard | None = None,
    ) -> None:
        self.reserved = reserved
        self.bill = Bill()
        self.stop_cause: str | None = None
        self._stream = stream
        self._first = first
        self._conditions = conditions
        self._conclude = conclude
        self._finalizers = finalizers
        self._clock = clock
        self._guard = guard
        self._transcript = Transcript(keep=reserved.decision.obligations.content_logging in ("encrypted", "redacted"))
        self._meter = Meter(echoed_bytes(reserved.request))
        self._open = set(range(reserved.request.choices))
        self._streams = reserved.request.stream
        self._untold = set(self._open)
        """Choices whose end has not left yet."""
        self._usage: Usage | None = None
        self._signals: Signals | None = None
        self._finish_reason: str | None = None
        self._stopped = False
        """True once this side, not the backend, ended a choice."""
        self._first_at = clock.monotonic_s()
        self._iterator = self._run()
        self._started = False
        self.concluded = False

    def __aiter__(self) -> AsyncIterator[Chunk]:
        self._started = True
        return self._iterator

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._started:
            # A generator that never ran has no `finally` to run.
            await self._finish(self._left_early(), None)
        await self._iterator.aclose()

    def used_so_far(self) -> Usage:
        """By what has arrived; the bill has the last word."""
        return Usage(self.reserved.estimate.prompt_tokens, sum(self._meter.tokens.values()))

    async def _run(self) -> AsyncGenerator[Chunk, None]:
        outcome, failure = Outcome.ERROR, None
        try:
            chunk = self._first
            while chunk is not None:
                for piece in await self._guarded(self._govern(chunk)):
                    self._note(piece)
                    yield piece
                if self._stopped and not self._open:
                    break
                with BOUNDARY:
                    chunk = await anext(self._stream, None)
            for piece in await self._held_back():
                self._note(piece)
                yield piece
            outcome = Outcome.OK
        except (GeneratorExit, asyncio.CancelledError):
            outcome = self._left_early()
            raise
        except GatewayError as error:
            outcome = Outcome.DENIED if error.denies else Outcome.ENGINE_ERROR
            failure = Failure(error.status, error.code, error.message, error.detail)
            raise
        finally:
            await self._finish(outcome, failure)

    def _left_early(self) -> Outcome:
        return Outcome.CLIENT_DISCONNECT if self._conditions.gone() else Outcome.CANCELLED

    def _govern(self, chunk: Chunk) -> tuple[Chunk, ...]:
        """Count the chunk and decide whether the answer may go on after it."""
        match chunk:
            case Delta():
                return self._grow(chunk)
            case ChoiceEnd():
                return self._end(chunk)
            case UsageReport(usage=usage):
                self._usage = usage
                return ()
            case _:
                return (chunk,)

    def _grow(self, delta: Delta) -> tuple[Chunk, ...]:
        is_open = delta.index in self._open
        if not is_open and (delta.told or delta.token_ids):
            return ()  # the backend has not noticed yet that this choice was stopped
        emitted = self._meter.tokens.get(delta.index, 0)
        after = self._meter.after(delta)
        if is_open and after[0] > emitted >= self._conditions.granted_tokens:
            # A backend that does not keep its limit: nothing past the last granted token leaves or is billed.
            return self._stop(delta.more(""), "budget" if self._conditions.clamped else None, everything=False)
        self._meter.take(delta, after)
        if self._open and self._conditions.revoked():
            return self._stop(delta, "revoked", everything=True)
        if self._open and not self._conditions.permitted():
            return self._stop(delta, "policy", everything=True)
        deadline_s = self._conditions.deadline_s
        if self._open and deadline_s is not None and self._clock.monotonic_s() > deadline_s:
            return self._stop(delta, "deadline", everything=True)
        return (delta,)

    def _end(self, end: ChoiceEnd) -> tuple[Chunk, ...]:
        last = end.last
        if last.index not in self._open and (last.told or last.token_ids):
            return ()  # as above
        self._meter.take(last)
        if end.signals is not None:
            self._signals = end.signals
        if end.finish_reason == "length" and self._conditions.clamped and end.stop_cause is None:
            end = replace(end, stop_cause="budget")
        self._close(end)
        return (end,)

    async def _guarded(self, pieces: Sequence[Chunk]) -> Sequence[Chunk]:
        """What of the pieces may leave now, by the inspection that policy asks for."""
        guard, passed = self._guard, list[Chunk]()
        if guard is None:
            return pieces
        for piece in pieces:
            checked = await guard.check(piece)
            if guard.blocked is not None:
                return (*passed, *await self._block(guard.blocked))
            passed += checked
        return passed

    async def _held_back(self) -> Sequence[Chunk]:
        if self._guard is None or self._guard.blocked is not None:
            return ()
        rest = await self._guard.flush()
        return rest if self._guard.blocked is None else await self._block(self._guard.blocked)

    async def _block(self, category: str) -> Sequence[Chunk]:
        """End every choice that has not ended for the caller. Raises `BlockedByPolicy` while nothing has left yet."""
        self._stopped = True
        self._open.clear()
        self._finish_reason, self.stop_cause = "content_filter", "guardrails"
        if self._streams:
            return [ChoiceEnd(TextDelta(index), "content_filter", "guardrails") for index in sorted(self._untold)]
        with BOUNDARY:
            while not self._meter.exact and self._usage is None:
                # A whole answer of an upstream is here already, and what it cost is said behind its text.
                chunk = await anext(self._stream, None)
                if chunk is None:
                    break
                if isinstance(chunk, UsageReport):
                    self._usage = chunk.usage
        raise blocked(category, "The answer was blocked by policy.")

    def _note(self, chunk: Chunk) -> None:
        """What leaves is what is committed to."""
        if isinstance(chunk, ChoiceEnd):
            self._untold.discard(chunk.index)
            chunk = chunk.last
        if isinstance(chunk, Delta):
            self._transcript.add(chunk)

    def _stop(self, delta: Delta, cause: str | None, *, everything: bool) -> tuple[Chunk, ...]:
        self._stopped = True
        last = [ChoiceEnd(delta, "length", cause)]
        if everything:
            last += [ChoiceEnd(TextDelta(index), "length", cause) for index in sorted(self._open - {delta.index})]
        for end in last:
            self._close(end)
        return tuple(last)

    def _close(self, end: ChoiceEnd) -> None:
        self._open.discard(end.index)
        self._finish_reason = end.finish_reason
        if end.stop_cause is not None:
            self.stop_cause = end.stop_cause

    async def _finish(self, outcome: Outcome, failure: Failure | None) -> None:
        if self.concluded:
            return
        self.concluded = True
        completion = Completion(
            outcome=outcome,
            status=200 if failure is None or self._streams else failure.status,
            usage=self._final_usage(outcome),
            signals=self._signals,
            finish_reason=self._finish_reason,
            stop_cause=self.stop_cause,
            failure=failure,
            findings=self._guard.findings if self._guard is not None else (),
            response_digest=self._transcript.digest(),
            completion_contents=self._transcript.contents(),
            tool_calls=self._transcript.calls,
            first_chunk_s=self._first_at,
        )
        done = await self._finalizers.run(self._close_and_conclude(completion))
        self.bill = Bill(done.usage, done.cost_micro)

    async def _close_and_conclude(self, completion: Completion) -> Concluded:
        await close(self._stream)
        return await self._conclude(self.reserved, completion)

    def _final_usage(self, outcome: Outcome) -> Usage:
        """Who left early pays what was made until then, also what was on its way."""
        used = self._usage
        if used is None and outcome in (Outcome.CLIENT_DISCONNECT, Outcome.CANCELLED):
            used = used_so_far(self._stream)
        return self._meter.usage(used, self.reserved.estimate)
