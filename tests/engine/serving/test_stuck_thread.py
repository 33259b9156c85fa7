"""A step that does not come back: waiters are told, new requests refused, deadlines kept, and closing ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine import AsyncEngine, DeadlineExceeded, EngineUnavailable, LoadedModel
from engine.step import Step
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import collect, config, loader_of, request, tokens_of, until
from tests.fakes.hang_guard import HANG_S, hang_guard
from tests.fakes.runner import FakeRunner


class Stuck:
    """Steps stand still while `hold` is unset, and after `HANG_S` at the latest."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, _: Step) -> None:
        self.entered.set()
        self.release.wait(HANG_S)


def engine_with(hold: Stuck, *, watchdog_s: float = 0.08) -> AsyncEngine:
    loader = loader_of(FakeRunner(before_step=hold))
    return AsyncEngine(config(max_num_seqs=1), loader=loader, watchdog_s=watchdog_s, close_timeout_s=0.1)


@pytest.fixture
async def stuck() -> AsyncIterator[tuple[AsyncEngine, Stuck]]:
    hold = Stuck()
    engine = engine_with(hold)
    await engine.start()
    yield engine, hold
    hold.release.set()
    await engine.close()


async def test_a_stalled_engine_refuses_new_requests_at_once_and_takes_them_when_the_step_returns(
    stuck: tuple[AsyncEngine, Stuck],
) -> None:
    engine, hold = stuck
    async with hang_guard():
        with pytest.raises(EngineUnavailable):
            await collect(engine.generate(request("a")))
        with pytest.raises(EngineUnavailable, match="stalled"):
            engine.generate(request("b"))
        hold.release.set()
        await until(lambda: engine.stats().stalled_s == 0)
        assert len(tokens_of(await collect(engine.generate(request("c", max_tokens=4))))) == 4


async def test_a_deadline_is_kept_although_the_thread_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.serving.stream.OVERDUE_S", 0.05)
    hold = Stuck()
    engine = engine_with(hold, watchdog_s=2 * HANG_S)
    await engine.start()
    loop = asyncio.get_running_loop()
    running = engine.generate(request("a", deadline_s=loop.time() + 0.05))
    queued = engine.generate(request("b", deadline_s=loop.time() + 0.05))
    async with hang_guard():
        for stream in (running, queued):
            with pytest.raises(DeadlineExceeded):
                await collect(stream)
    assert not hold.release.is_set()
    hold.release.set()
    await engine.close()


async def test_closing_does_not_wait_for_a_step_that_does_not_return(
    stuck: tuple[AsyncEngine, Stuck], caplog: pytest.LogCaptureFixture
) -> None:
    engine, hold = stuck
    stream = engine.generate(request("a"))
    await asyncio.to_thread(hold.entered.wait, HANG_S)
    async with hang_guard():
        with caplog.at_level(logging.ERROR):
            await engine.close()
        with pytest.raises(EngineUnavailable):
            await collect(stream)
    assert not hold.release.is_set()
    assert "left behind" in caplog.text


class StuckEncoder:
    def __init__(self, hold: Stuck) -> None:
        self._hold = hold

    def embed(self, token_id_lists: Sequence[Sequence[int]]) -> list[list[float]]:
        self._hold.release.wait(HANG_S)
        return [[1.0] for _ in token_id_lists]


async def test_a_sentence_encoder_that_does_not_return_is_reported_too() -> None:
    hold = Stuck()

    def load(*_: Any) -> LoadedModel:
        return LoadedModel(FakeRunner(), ByteTokenizer(), "0" * 64, StuckEncoder(hold))

    engine = AsyncEngine(config(), loader=load, watchdog_s=0.08, close_timeout_s=0.1)
    await engine.start()
    async with hang_guard():
        with pytest.raises(EngineUnavailable, match="stalled"):
            await engine.embed([[1, 2]])
        with pytest.raises(EngineUnavailable, match="stalled"):
            await engine.embed([[1, 2]])
    hold.release.set()
    await engine.close()
