"""A running answer: what may stop it between two chunks, and what is recorded however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import GatewayError, Unavailable, UpstreamFailed
from gateway.flow.parts import TextPart
from gateway.flow.values import GenerationParams, Obligations, Outcome
from tests.fakes.chunks import Heard, heard
from tests.fakes.parts import Bench


async def collect(bench: Bench, **changes: Any) -> list[Heard]:
    async with await bench.pipeline().answer(bench.incoming(**changes)) as answer:
        return [heard(chunk) async for chunk in answer]


async def test_a_revoked_caller_is_stopped_at_that_token() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")

    def revoke(number: int) -> None:
        bench.identity.revoked = number >= 3

    bench.backend.between = revoke
    chunks = await collect(bench)
    assert "".join(chunk.text for chunk in chunks) == "abcd"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", "revoked")
    assert bench.backend.closed == 1
    assert bench.completion.stop_cause == "revoked"
    assert bench.completion.usage.completion_tokens == 4


async def test_a_policy_that_takes_the_model_away_stops_what_runs() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")

    def change(number: int) -> None:
        if number == 3:
            bench.access.version, bench.access.allowed = 4, {"maxi"}

    bench.backend.between = change
    chunks = await collect(bench)
    assert "".join(chunk.text for chunk in chunks) == "abcd"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", "policy")
    assert bench.backend.closed == 1
    assert bench.completion.stop_cause == "policy"


@pytest.mark.parametrize("roles", [frozenset(), frozenset({"analyst"})], ids=["narrowed", "as before"])
async def test_a_caller_whose_rights_are_taken_away_is_decided_again(roles: frozenset[str]) -> None:
    bench = Bench()
    narrowed = replace(bench.identity.principal, roles=roles)

    def narrow(number: int) -> None:
        if number == 1:
            bench.identity.narrowed = narrowed
            bench.access.allowed = set() if not roles else {"mini"}

    bench.backend.between = narrow
    async with await bench.pipeline().answer(bench.incoming()) as answer:
        chunks = [heard(chunk) async for chunk in answer]
    stopped = ("length", "policy") if not roles else ("stop", None)
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == stopped
    assert bench.access.asked.count("mini") == (2 if not roles else 1)


async def test_a_new_policy_that_still_allows_it_is_asked_once() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")

    def change(number: int) -> None:
        if number == 3:
            bench.access.version = 4

    bench.backend.between = change
    asked = bench.access.asked
    assert "".join(chunk.text for chunk in await collect(bench)) == "abcdefgh"
    assert asked == ["mini", "mini"]


async def test_a_backend_that_ignores_its_limit_is_stopped_by_count() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")
    bench.limiter.grant = 3
    generate = bench.backend.generate
    bench.backend.generate = lambda *args, **named: generate(  # type: ignore[method-assign]
        *args, **{**named, "max_output_tokens": 100}
    )
    chunks = await collect(bench)
    assert "".join(chunk.text for chunk in chunks) == "abc"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", "budget")
    assert bench.completion.usage.completion_tokens == 3


async def test_a_backend_that_never_ends_is_stopped_at_the_deadline() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")
    bench.backend.between = lambda number: bench.clock.advance(1.0)
    incoming = bench.incoming()
    context = replace(incoming.context, deadline_s=bench.clock.monotonic_s() + 2.5)
    async with await bench.pipeline().answer(replace(incoming, context=context)) as answer:
        chunks = [heard(chunk) async for chunk in answer]
    assert "".join(chunk.text for chunk in chunks) == "abc"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", "deadline")
    assert bench.backend.closed == 1


async def test_more_than_was_asked_for_is_cut_without_blaming_a_budget() -> None:
    bench = Bench()
    bench.backend.words = tuple("abcdefgh")
    generate = bench.backend.generate
    bench.backend.generate = lambda *args, **named: generate(  # type: ignore[method-assign]
        *args, **{**named, "max_output_tokens": 100}
    )
    chunks = await collect(bench, params=GenerationParams(max_tokens=2))
    assert "".join(chunk.text for chunk in chunks) == "ab"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", None)


async def test_a_failure_in_the_middle_is_told_and_what_was_made_is_billed() -> None:
    bench = Bench()
    bench.backend.failure, bench.backend.fail_at = UpstreamFailed("broke off"), 2
    with pytest.raises(UpstreamFailed):
        await collect(bench)
    done = bench.completion
    assert (done.outcome, done.usage.completion_tokens) == (Outcome.ENGINE_ERROR, 2)
    assert bench.limiter.settled[0][1].completion_tokens == 2


async def test_a_bug_in_the_middle_does_not_leak(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.backend.failure, bench.backend.fail_at = KeyError("prompt text"), 1
    with pytest.raises(GatewayError) as caught:
        await collect(bench)
    assert "prompt text" not in caught.value.message
    assert bench.completion.outcome is Outcome.ENGINE_ERROR


async def test_a_client_that_leaves_in_the_middle_is_recorded_with_the_tokens_made() -> None:
    bench = Bench()
    pipeline = bench.pipeline()
    read: list[str] = []
    two = asyncio.Event()

    async def request() -> None:
        async with await pipeline.answer(bench.incoming()) as answer:
            async for chunk in answer:
                read.append(chunk.text)
                if len(read) == 2:
                    bench.backend.gate = asyncio.Event()
                    two.set()

    task = asyncio.create_task(request())
    await two.wait()
    bench.gone = True
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    done = bench.completion
    assert (done.outcome, done.usage.completion_tokens) == (Outcome.CLIENT_DISCONNECT, 2)
    assert bench.backend.closed == 1


async def test_a_shutdown_is_not_taken_for_a_disconnect() -> None:
    bench = Bench()
    answer = await bench.pipeline().answer(bench.incoming())
    async with answer:
        async for _ in answer:
            break
    assert bench.completion.outcome is Outcome.CANCELLED


async def test_an_answer_that_nobody_reads_is_still_concluded() -> None:
    bench = Bench()
    async with await bench.pipeline().answer(bench.incoming()):
        pass
    assert bench.completion.outcome is Outcome.CANCELLED
    assert len(bench.limiter.settled) == 1


async def test_an_answer_is_concluded_exactly_once() -> None:
    bench = Bench()
    async with await bench.pipeline().answer(bench.incoming()) as answer:
        async for _ in answer:
            pass
    assert len(bench.audit.completions) == len(bench.limiter.settled) == 1


async def test_the_text_is_kept_only_when_policy_asks_for_it() -> None:
    plain, kept = Bench(), Bench()
    kept.access.obligations = Obligations(content_logging="encrypted")
    await collect(plain)
    await collect(kept)
    assert plain.completion.completion_contents is None
    assert kept.completion.completion_contents == ((TextPart("uno dos tres"),),)


async def test_tokens_are_estimated_when_neither_usage_nor_ids_came() -> None:
    bench = Bench()
    bench.backend.tokens = None
    bench.backend.failure, bench.backend.fail_at = UpstreamFailed("gone"), 2
    with pytest.raises(UpstreamFailed):
        await collect(bench, params=GenerationParams())
    assert bench.completion.usage.source == "estimated"


async def test_the_last_byte_waits_for_the_completion_record() -> None:
    bench = Bench()
    durable = asyncio.Event()
    write = bench.audit.completion

    async def slow(exchange: object) -> None:
        await durable.wait()
        await write(exchange)  # type: ignore[arg-type]

    bench.audit.completion = slow  # type: ignore[method-assign]
    reading = asyncio.create_task(collect(bench))
    await asyncio.sleep(0.02)
    assert not reading.done()
    durable.set()
    assert "".join(chunk.text for chunk in await reading) == "uno dos tres"


async def test_a_completion_that_cannot_be_written_is_an_error_of_the_answer() -> None:
    bench = Bench()
    async with await bench.pipeline().answer(bench.incoming()) as answer:
        bench.audit.failure = Unavailable("no disk", code="audit_unavailable")
        with pytest.raises(Unavailable):
            [chunk async for chunk in answer]
    assert len(bench.limiter.settled) == 1
