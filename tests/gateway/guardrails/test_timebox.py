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
    box = Timebox(timeout_s=0.1, workers=1, wait_s=30)
    yield box
    box.close()


async def test_work_runs_in_a_thread_of_its_own(timebox: Timebox) -> None:
    name = await timebox.run(lambda check_deadline: threading.current_thread().name)
    assert name.startswith("esclusa-guard")


def burn(processor_s: float) -> None:
    """Work of this thread, however long the machine takes for it."""
    ends = time.thread_time() + processor_s
    while time.thread_time() < ends:
        pass


async def test_the_loop_goes_on_meanwhile_and_the_work_ends_with_its_processor_time(timebox: Timebox) -> None:
    looped, stopped = threading.Event(), threading.Event()

    def work(check_deadline: Callable[[], None]) -> None:
        assert looped.wait(30), "the loop waits for the work"
        try:
            while True:
                burn(0.005)
                check_deadline()
        except OutOfTime:
            stopped.set()
            raise

    asyncio.get_running_loop().call_soon(looped.set)
    with pytest.raises(NotInspected, match="too long"):
        await timebox.run(work)
    assert stopped.is_set()


async def test_time_in_which_the_thread_does_not_work_is_not_counted() -> None:
    box = Timebox(timeout_s=0.05, workers=1, wait_s=30)

    def starved(check_deadline: Callable[[], None]) -> str:
        time.sleep(0.2)  # as on a machine that gives the thread no turn
        check_deadline()
        return "read"

    assert await box.run(starved) == "read"
    box.close()


async def test_nobody_waits_for_ever() -> None:
    box, release = Timebox(timeout_s=30, workers=1, wait_s=0.05), threading.Event()
    with pytest.raises(NotInspected, match="too long"):
        await box.run(lambda check_deadline: release.wait(30))
    release.set()
    box.close()


async def test_what_nobody_waits_for_any_more_does_not_begin() -> None:
    box, release, ran = Timebox(timeout_s=30, workers=1, wait_s=0.05), threading.Event(), list[int]()
    works = (lambda check_deadline: release.wait(30), lambda check_deadline: ran.append(1))
    ended = await asyncio.gather(*(box.run(work) for work in works), return_exceptions=True)
    assert [type(error) for error in ended] == [NotInspected, NotInspected]
    release.set()
    await asyncio.to_thread(box._short.shutdown, wait=True)
    box.close()
    assert ran == []


async def test_a_caller_that_is_gone_stops_the_work() -> None:
    box, began, stopped = Timebox(timeout_s=30, workers=1), threading.Event(), threading.Event()

    def work(check_deadline: Callable[[], None]) -> None:
        began.set()
        try:
            while True:
                time.sleep(0.001)
                check_deadline()
        except OutOfTime:
            stopped.set()
            raise

    waiting = asyncio.create_task(box.run(work))
    assert await asyncio.to_thread(began.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(stopped.wait, 30), "the thread goes on for nobody"
    box.close()


async def test_long_texts_never_keep_a_short_one_waiting(timebox: Timebox) -> None:
    release = threading.Event()
    flood = [asyncio.create_task(timebox.run(lambda check_deadline: release.wait(5), size=LONG)) for _ in range(8)]
    try:
        assert await timebox.run(lambda check_deadline: "read", size=LONG - 1) == "read"
    finally:
        release.set()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_a_fault_is_logged_with_its_traceback_and_not_taken_for_a_clean_text(
    timebox: Timebox, caplog: pytest.LogCaptureFixture
) -> None:
    def work(check_deadline: Callable[[], None]) -> None:
        raise KeyError("detector")

    with pytest.raises(NotInspected, match="KeyError"):
        await timebox.run(work)
    with pytest.raises(NotInspected, match="KeyError"):
        timebox.at_once(work)
    assert len([record for record in caplog.records if record.exc_info]) == 2
