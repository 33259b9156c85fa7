"""Inspection beside the loop: in its own thread, within its time, and never silently skipped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.guardrails.timebox import LONG, NotInspected, OutOfTime, Timebox


@pytest.fixture
async def timebox() -> AsyncIterator[Timebox]:
    box = Timebox(timeout_s=0.1, workers=1)
    yield box
    box.close()


async def test_work_runs_in_a_thread_of_its_own(timebox: Timebox) -> None:
    name = await timebox.run(lambda between: threading.current_thread().name)
    assert name.startswith("esclusa-guard")


async def test_the_loop_goes_on_meanwhile_and_the_caller_waits_no_longer_than_its_time(timebox: Timebox) -> None:
    stopped = threading.Event()

    def work(between: Callable[[], None]) -> None:
        try:
            while True:
                between()
                time.sleep(0.005)
        except OutOfTime:
            stopped.set()
            raise

    started, beats = time.monotonic(), 0
    waiting = asyncio.create_task(timebox.run(work))
    while not waiting.done():
        await asyncio.sleep(0.01)
        beats += 1
    with pytest.raises(NotInspected, match="too long"):
        await waiting
    assert time.monotonic() - started < 1
    assert beats >= 3
    assert stopped.wait(1), "the thread goes on for nobody"


async def test_what_waits_for_a_thread_spends_its_own_time(timebox: Timebox) -> None:
    release = threading.Event()
    holding = asyncio.create_task(timebox.run(lambda between: release.wait(5)))
    await asyncio.sleep(0.01)
    ran: list[int] = []
    with pytest.raises(NotInspected):
        await timebox.run(lambda between: (between(), ran.append(1)))
    release.set()
    with pytest.raises(NotInspected):
        await holding
    await asyncio.sleep(0.05)
    assert ran == []


async def test_long_texts_never_keep_a_short_one_waiting(timebox: Timebox) -> None:
    release = threading.Event()
    flood = [asyncio.create_task(timebox.run(lambda between: release.wait(5), size=LONG)) for _ in range(8)]
    await asyncio.sleep(0.01)
    try:
        assert await timebox.run(lambda between: "read", size=LONG - 1) == "read"
    finally:
        release.set()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_a_fault_is_logged_with_its_traceback_and_not_taken_for_a_clean_text(
    timebox: Timebox, caplog: pytest.LogCaptureFixture
) -> None:
    def work(between: Callable[[], None]) -> None:
        raise KeyError("detector")

    with pytest.raises(NotInspected, match="KeyError"):
        await timebox.run(work)
    with pytest.raises(NotInspected, match="KeyError"):
        timebox.at_once(work)
    assert len([record for record in caplog.records if record.exc_info]) == 2
