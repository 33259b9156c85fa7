"""What breaks inside a step, the loop or the thread: who is told, what goes on, and who is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import (
    AsyncEngine,
    EngineFault,
    EngineState,
    EngineUnavailable,
    Grammar,
    LoadedModel,
    PoisonRequest,
)
from engine.serving.restarts import MOST_IN_A_ROW, Restarts
from engine.step import Step
from tests.engine.conftest import Start
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import collect, config, loader_of, request, text_of, tokens_of, until
from tests.fakes.hang_guard import hang_guard
from tests.fakes.runner import FakeRunner


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`: what a Rust extension raises is no `Exception`."""


class Fault:
    """A hook of the runner: `error` is raised by every step that `hits`."""

    def __init__(self, hits: Callable[[Step], bool] = lambda _: True) -> None:
        self.error: BaseException | None = None
        self.hits = hits

    def __call__(self, step: Step) -> None:
        if self.error is not None and self.hits(step):
            raise self.error


async def outcome(engine: AsyncEngine, request_id: str, prompt: str = "hola", **fields: Any) -> str:
    try:
        events = await collect(engine.generate(request(request_id, prompt, max_tokens=4, **fields)))
    except (EngineFault, EngineUnavailable, PoisonRequest) as error:
        return error.code
    return str(events[-1].finish_reason)


class Breaker:
    """Makes steps fail that hold a request whose id starts with `bad`."""

    def __init__(self) -> None:
        self.broken = 0

    def __call__(self, step: Step) -> None:
        if any(work.sequence.request_id.startswith("bad") for work in step.work):
            self.broken += 1
            raise RuntimeError("kernel fault")


async def test_a_request_that_breaks_its_step_ends_alone(start: Start) -> None:
    engine = await start(FakeRunner(before_step=Breaker()))
    good = [engine.generate(request(f"g{i}", max_tokens=20)) for i in range(5)]
    with pytest.raises(EngineFault):
        await collect(engine.generate(request("bad", max_tokens=20)))
    alone = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    await alone.start()
    for index, stream in enumerate(good):
        expected = await collect(alone.generate(request(f"g{index}", max_tokens=20)))
        assert tokens_of(await collect(stream)) == tokens_of(expected)
    await alone.close()
    assert engine.stats().restarts == 0


async def test_one_request_with_several_choices_that_breaks_its_steps_does_not_stop_the_loop(start: Start) -> None:
    engine = await start(FakeRunner(before_step=Breaker()))
    with pytest.raises(EngineFault):
        await collect(engine.generate(request("bad", n=3)))
    assert engine.stats().restarts == 0


async def test_a_request_that_breaks_two_steps_is_refused(start: Start) -> None:
    engine = await start(FakeRunner(before_step=Breaker()))
    other = engine.generate(request("good", max_tokens=200))
    for attempt in range(2):
        with pytest.raises(EngineFault):
            await collect(engine.generate(request(f"bad{attempt}", "veneno")))
        assert await outcome(engine, f"between{attempt}", "entre medias") == "length"
    with pytest.raises(PoisonRequest):
        await collect(engine.generate(request("bad3", "veneno")))
    await other.aclose()
    await until(lambda: engine.stats().poisoned == 1)


async def test_a_row_fault_ends_all_choices_of_its_request_only(start: Start) -> None:
    runner = FakeRunner()
    runner.row_faults["bad"] = EngineFault("sampler row")
    engine = await start(runner)
    good = engine.generate(request("good", max_tokens=10))
    with pytest.raises(EngineFault, match="sampler row"):
        await collect(engine.generate(request("bad", n=2)))
    assert len(tokens_of(await collect(good))) == 10
    await until(lambda: engine.stats().kv.free_blocks == engine.stats().kv.num_blocks)


class FailsOnZ(ByteTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        if token_id == ord("z"):
            raise KeyError("no such token")
        return super().token_bytes(token_id)


async def test_a_fault_in_the_detokenizer_ends_its_request_only() -> None:
    runner = FakeRunner(next_token=lambda _, work: ord("z" if work.sequence.request_id == "bad" else "a"))
    engine = AsyncEngine(config(), loader=loader_of(runner, FailsOnZ()))
    await engine.start()
    good = engine.generate(request("good", max_tokens=10))
    with pytest.raises(EngineFault):
        await collect(engine.generate(request("bad", max_tokens=10)))
    assert text_of(await collect(good)) == "a" * 10
    assert engine.stats().restarts == 0
    await engine.close()


class BrokenMatcher:
    is_terminated = False

    def fill_bitmask(self, row: Any) -> None:
        row[:] = -1

    def accept(self, token_id: int) -> None:
        raise ValueError("the matcher is in an impossible state")

    def copy(self) -> BrokenMatcher:
        return self


async def test_a_fault_in_a_grammar_ends_its_request_only(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.text.grammar.GrammarCompiler.compile", lambda *_: BrokenMatcher())
    engine = await start()
    good = engine.generate(request("good", max_tokens=10))
    with pytest.raises(EngineFault):
        await collect(engine.generate(request("bad", grammar=Grammar("regex", "a"), max_tokens=10)))
    assert len(tokens_of(await collect(good))) == 10
    await until(lambda: engine.stats().kv.free_blocks == engine.stats().kv.num_blocks)
    assert engine.stats().restarts == 0


async def test_the_loop_survives_its_own_bug_and_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await start()
    core = engine._thread._core  # type: ignore[union-attr]
    assert core is not None

    def broken(*_: Any) -> Any:
        raise AssertionError("a bug in the scheduler")

    monkeypatch.setattr(core.scheduler, "schedule", broken)
    with pytest.raises(EngineFault):
        await collect(engine.generate(request("a", max_tokens=5)))
    assert len(tokens_of(await collect(engine.generate(request("b", max_tokens=5))))) == 5
    assert engine.stats().restarts == 1


# -- a transient fault of the engine is nobody's strike --------------------------------------------------------------


async def test_an_engine_wide_fault_leaves_no_request_refused_in_any_tenant(start: Start) -> None:
    fault = Fault()
    engine = await start(lambda: FakeRunner(before_step=fault))
    fault.error = RuntimeError("no memory")
    during = [await outcome(engine, f"during{i}", "buenos dias") for i in range(4)]
    assert set(during) <= {"engine_fault", "engine_unavailable"}
    fault.error = None
    await until(lambda: engine.state is EngineState.READY)
    assert await outcome(engine, "unrelated", "otra cosa") == "length"
    for attempt in range(3):
        assert await outcome(engine, f"after{attempt}", "buenos dias") == "length"
    assert await outcome(engine, "elsewhere", "buenos dias", cache_salt=b"other tenant") == "length"


async def test_lone_requests_that_fail_in_turn_do_not_refuse_each_other(start: Start) -> None:
    fault = Fault()
    engine = await start(lambda: FakeRunner(before_step=fault))
    fault.error = RuntimeError("no memory")
    for turn in range(3):
        for prompt in ("uno", "dos"):
            assert await outcome(engine, f"{prompt}{turn}", prompt) in ("engine_fault", "engine_unavailable")
    fault.error = None
    await until(lambda: engine.state is EngineState.READY)
    assert [await outcome(engine, f"after {prompt}", prompt) for prompt in ("uno", "dos", "uno")] == ["length"] * 3


async def test_a_refused_request_of_one_tenant_runs_for_another_and_after_an_operator_cleared_it(start: Start) -> None:
    fault = Fault(lambda step: any(work.sequence.request_id.startswith("bad") for work in step.work))
    fault.error = RuntimeError("kernel")
    engine = await start(FakeRunner(before_step=fault))
    other = engine.generate(request("good", max_tokens=200))
    for attempt in range(2):
        assert await outcome(engine, f"bad{attempt}", "veneno", cache_salt=b"a") == "engine_fault"
        assert await outcome(engine, f"between{attempt}", "entre medias") == "length"
    assert await outcome(engine, "bad2", "veneno", cache_salt=b"a") == "poison_request"
    assert await outcome(engine, "good2", "veneno", cache_salt=b"b") == "length"
    await engine.clear_poison()
    assert await outcome(engine, "good3", "veneno", cache_salt=b"a") == "length"
    await other.aclose()


# -- a thread that dies ----------------------------------------------------------------------------------------------


async def test_a_panic_in_a_step_ends_the_request_that_causes_it_and_no_other(start: Start) -> None:
    fault = Fault(lambda step: any(work.sequence.request_id == "bad" for work in step.work))
    fault.error = Panic()
    engine = await start(FakeRunner(before_step=fault))
    good = engine.generate(request("good", max_tokens=50))
    async with hang_guard():
        assert await outcome(engine, "bad") == "engine_fault"
        assert len(tokens_of(await collect(good))) == 50
    assert engine.stats().restarts == 0


async def test_a_panic_anywhere_in_the_loop_tells_every_waiter_and_the_engine_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start()
    await engine.pause()
    streams = [engine.generate(request(str(i), f"pregunta {i}", max_tokens=5)) for i in range(7)]
    core = engine._thread._core  # type: ignore[union-attr]
    assert core is not None

    def broken(*_: Any) -> Any:
        raise Panic

    monkeypatch.setattr(core.scheduler, "schedule", broken)
    await engine.resume()
    async with hang_guard():
        for stream in streams:
            with pytest.raises(EngineFault):
                await collect(stream)
        assert await outcome(engine, "after") == "length"
    assert engine.stats().restarts == 1


async def test_a_panic_while_loading_is_raised_by_start() -> None:
    def load(*_: Any) -> LoadedModel:
        raise Panic

    engine = AsyncEngine(config(), loader=load)
    async with hang_guard():
        with pytest.raises(EngineFault):
            await engine.start()
        assert engine.state is EngineState.FAILED
        await engine.close()


async def test_a_fault_while_a_request_is_queued_is_told_to_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await start()
    core = engine._thread._core  # type: ignore[union-attr]
    assert core is not None

    def broken(*_: Any) -> Any:
        raise Panic

    monkeypatch.setattr(core.scheduler, "add", broken)
    async with hang_guard():
        assert await outcome(engine, "a") == "engine_fault"
        assert await outcome(engine, "b", "otra") == "length"


async def test_what_has_ended_in_a_step_is_delivered_although_the_loop_dies_after_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start()
    thread = engine._thread
    assert thread is not None

    def broken(*_: Any) -> Any:
        raise Panic

    monkeypatch.setattr(thread, "_record_faults", broken)
    async with hang_guard():
        assert len(tokens_of(await collect(engine.generate(request("a", max_tokens=1))))) == 1


async def test_a_thread_that_vanishes_leaves_no_waiter_no_ready_state_and_can_be_closed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start(options={"watchdog_s": 0.8})
    thread = engine._thread
    assert thread is not None

    def broken(**_: Any) -> None:
        raise Panic

    monkeypatch.setattr(thread, "_recover", broken)
    monkeypatch.setattr(thread, "_tell_all", lambda _: None)  # it has no time for last words
    core = thread._core
    assert core is not None

    def schedule(*_: Any) -> Any:
        raise Panic

    monkeypatch.setattr(core.scheduler, "schedule", schedule)
    stream = engine.generate(request("a"))
    async with hang_guard():
        with pytest.raises(EngineUnavailable):
            await collect(stream)
        assert engine.state is EngineState.FAILED
        assert await outcome(engine, "b") == "engine_unavailable"
        await engine.close()


async def test_an_engine_that_cannot_be_rebuilt_has_failed_and_refuses(start: Start) -> None:
    loads = 0
    fault = Fault()

    def build() -> FakeRunner:
        nonlocal loads
        loads += 1
        if loads > 1:
            raise MemoryError("no memory")
        return FakeRunner(before_step=fault)

    engine = await start(build)
    fault.error = Panic()
    for attempt in range(3):
        assert await outcome(engine, str(attempt)) in ("engine_fault", "engine_unavailable")
    await until(lambda: engine.state is EngineState.FAILED)
    assert await outcome(engine, "later") == "engine_unavailable"


def test_rebuilds_come_at_once_then_later_and_later_and_not_for_ever() -> None:
    restarts = Restarts()
    delays = [restarts.next_delay_s() for _ in range(MOST_IN_A_ROW + 1)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, None]
    restarts.worked()
    assert restarts.next_delay_s() == 0.0
