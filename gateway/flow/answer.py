"""A running answer: governed chunks out, and one finaliser that always runs.

Between two chunks the gateway asks whether the caller still may go on: a revoked principal, a policy that no longer
allows it or a spent grant stops the sequence at that token. Settlement and the completion record are shielded: a
disconnect, a cancellation or a crash of the backend cannot skip them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from gateway.errors import GatewayError
from gateway.flow.boundary import BOUNDARY, Finalisers, close
from gateway.flow.context import Clock
from gateway.flow.values import Chunk, Exchange, Failure, Outcome, Signals, Usage

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, before it is settled and priced."""

    outcome: Outcome
    status: int
    usage: Usage = NO_USAGE
    signals: Signals | None = None
    finish_reason: str | None = None
    stop_cause: str | None = None
    failure: Failure | None = None
    response_digest: bytes | None = None
    completion_text: str | None = None
    first_chunk_s: float | None = None
    """On the clock of `Clock.monotonic_s`."""


Conclude = Callable[[Exchange, Ending], Coroutine[Any, Any, Exchange]]
"""Settle and record; returns the whole exchange. Runs shielded."""


@dataclass(frozen=True, slots=True)
class Authority:
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

    `exchange` is the decision part at first and the whole record once the iteration has ended.
    """

    def __init__(
        self,
        exchange: Exchange,
        stream: AsyncIterator[Chunk],
        first: Chunk | None,
        authority: Authority,
        conclude: Conclude,
        finalisers: Finalisers,
        clock: Clock,
    ) -> None:
        self.exchange = exchange
        self._stream = stream
        self._first = first
        self._authority = authority
        self._conclude = conclude
        self._finalisers = finalisers
        self._clock = clock
        logging = exchange.decision.obligations.content_logging if exchange.decision else "hash"
        self._keep_text = logging in ("redacted", "encrypted")
        self._text: list[str] = []
        self._digest = hashlib.sha256()
        self._emitted: dict[int, int] = {}
        self._open = set(range(exchange.request.params.n if exchange.request else 1))
        self._usage: Usage | None = None
        self._counted = True
        self._signals: Signals | None = None
        self._finish_reason: str | None = None
        self._stop_cause: str | None = None
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

    async def _run(self) -> AsyncGenerator[Chunk, None]:
        outcome, failure = Outcome.ERROR, None
        try:
            chunk = self._first
            while chunk is not None:
                for piece in self._govern(chunk):
                    yield piece
                if self._stopped and not self._open:
                    break
                with BOUNDARY:
                    chunk = await anext(self._stream, None)
            outcome = Outcome.OK
        except (GeneratorExit, asyncio.CancelledError):
            outcome = self._left_early()
            raise
        except GatewayError as error:
            outcome = Outcome.ENGINE_ERROR
            failure = Failure(error.status, error.code, error.message, error.detail)
            raise
        finally:
            await self._finish(outcome, failure)

    def _left_early(self) -> Outcome:
        return Outcome.CLIENT_DISCONNECT if self._authority.gone() else Outcome.CANCELLED

    def _govern(self, chunk: Chunk) -> tuple[Chunk, ...]:
        """Count the chunk and decide whether the answer may go on after it."""
        if chunk.index not in self._open and (chunk.text or chunk.token_ids):
            return ()  # the backend has not noticed yet that this choice was stopped
        count = len(chunk.token_ids)
        if not count and chunk.text:
            count, self._counted = 1, False
        emitted = self._emitted.get(chunk.index, 0)
        spent = chunk.index in self._open and count > 0 and emitted >= self._authority.granted_tokens
        if spent and chunk.finish_reason is None:
            # A backend that does not keep its limit: nothing past the last granted token leaves or is billed.
            return self._stop(
                replace(chunk, text="", token_ids=(), logprobs=()),
                "budget" if self._authority.clamped else None,
                everything=False,
            )
        self._emitted[chunk.index] = emitted + count
        if chunk.text:
            self._digest.update(chunk.text.encode())
            if self._keep_text:
                self._text.append(chunk.text)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.signals is not None:
            self._signals = chunk.signals
        if chunk.finish_reason is not None:
            if chunk.finish_reason == "length" and self._authority.clamped and chunk.stop_cause is None:
                chunk = replace(chunk, stop_cause="budget")
            self._close(chunk)
            return (chunk,)
        if self._open and self._authority.revoked():
            return self._stop(chunk, "revoked", everything=True)
        if self._open and not self._authority.permitted():
            return self._stop(chunk, "policy", everything=True)
        deadline_s = self._authority.deadline_s
        if self._open and deadline_s is not None and self._clock.monotonic_s() > deadline_s:
            return self._stop(chunk, "deadline", everything=True)
        return (chunk,)

    def _stop(self, chunk: Chunk, cause: str | None, *, everything: bool) -> tuple[Chunk, ...]:
        self._stopped = True
        last = [replace(chunk, finish_reason="length", stop_cause=cause)]
        if everything:
            last += [
                Chunk(index=index, finish_reason="length", stop_cause=cause)
                for index in sorted(self._open - {chunk.index})
            ]
        for piece in last:
            self._close(piece)
        return tuple(last)

    def _close(self, chunk: Chunk) -> None:
        self._open.discard(chunk.index)
        self._finish_reason = chunk.finish_reason
        if chunk.stop_cause is not None:
            self._stop_cause = chunk.stop_cause

    async def _finish(self, outcome: Outcome, failure: Failure | None) -> None:
        if self.concluded:
            return
        self.concluded = True
        ending = Ending(
            outcome=outcome,
            status=200,
            usage=self._final_usage(),
            signals=self._signals,
            finish_reason=self._finish_reason,
            stop_cause=self._stop_cause,
            failure=failure,
            response_digest=self._digest.digest(),
            completion_text="".join(self._text) if self._keep_text else None,
            first_chunk_s=self._first_at,
        )
        self.exchange = await self._finalisers.run(self._close_and_conclude(ending))

    async def _close_and_conclude(self, ending: Ending) -> Exchange:
        await close(self._stream)
        return await self._conclude(self.exchange, ending)

    def _final_usage(self) -> Usage:
        """The backend's own figures, or what was counted on the way when it could not give any."""
        if self._usage is not None:
            return self._usage
        prompt = self.exchange.estimate
        exact = self._counted and prompt is not None and prompt.exact
        return Usage(
            prompt_tokens=prompt.prompt_tokens if prompt is not None else 0,
            completion_tokens=sum(self._emitted.values()),
            source="engine" if exact else "estimated",
        )
