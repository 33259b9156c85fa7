"""What a request pays that ends before its answer does: what the backend has done for it, and nothing for waiting."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import DeadlineExceeded
from gateway.flow.values import Outcome, Usage
from tests.fakes.parts import Bench


async def left_before_the_first_chunk(bench: Bench) -> None:
    bench.backend.gate = asyncio.Event()
    task = asyncio.create_task(bench.pipeline().answer(bench.incoming()))
    while not bench.backend.started:  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0)
    bench.gone = True
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("prefilled", [0, 5])
async def test_a_client_that_leaves_the_queue_pays_only_what_was_prefilled(prefilled: int) -> None:
    bench = Bench()
    bench.backend.used = Usage(prompt_tokens=prefilled)
    await left_before_the_first_chunk(bench)
    done = bench.completion
    assert (done.outcome, done.usage) == (Outcome.CLIENT_DISCONNECT, Usage(prompt_tokens=prefilled, source="engine"))
    assert bench.limiter.settled == [("claim-0", done.usage, 0)]


async def test_where_a_backend_cannot_tell_the_prompt_is_an_estimate() -> None:
    bench = Bench()
    await left_before_the_first_chunk(bench)
    assert bench.completion.usage == Usage(prompt_tokens=7, source="estimated")


async def test_a_client_that_leaves_amid_an_answer_pays_also_what_was_on_its_way() -> None:
    bench = Bench()
    async with await bench.pipeline().answer(bench.incoming()) as answer:
        async for _ in answer:
            bench.gone = True
            bench.backend.used = Usage(prompt_tokens=7, completion_tokens=4)
            break
    done = bench.completion
    assert (done.outcome, done.usage) == (Outcome.CLIENT_DISCONNECT, Usage(7, 4, source="engine"))


async def test_a_deadline_before_the_answer_is_an_error_on_record_that_costs_no_tokens() -> None:
    bench = Bench()
    bench.backend.failures = {"mini": DeadlineExceeded("too late")}
    with pytest.raises(DeadlineExceeded) as caught:
        await bench.text(model="auto")
    assert (caught.value.status, caught.value.code, caught.value.headers["retry-after"]) == (
        503,
        "deadline_exceeded",
        "5",
    )
    done = bench.completion
    assert (done.outcome, done.status, done.usage) == (Outcome.ERROR, 503, Usage())
    assert [name for name, _ in bench.backend.started] == ["mini"], "no other model is tried: its time is over too"


class Panic(BaseException):
    """As a Rust extension's panic, which is no `Exception`."""


async def test_a_panic_of_an_extension_is_a_bare_500_on_record() -> None:
    bench = Bench()
    bench.backend.failures = {"mini": Panic()}  # type: ignore[dict-item]
    with pytest.raises(Exception, match="The gateway failed") as caught:
        await bench.text()
    assert getattr(caught.value, "status", None) == 500
    assert bench.completion.outcome is Outcome.ERROR
