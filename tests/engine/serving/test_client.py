from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import (
    AsyncEngine,
    DeadlineExceeded,
    DuplicateRequest,
    EngineFault,
    EngineOverloaded,
    EngineState,
    EngineUnavailable,
    EngineUsage,
    FinishReason,
    InvalidInput,
    LoadedModel,
    PoisonRequest,
    SchedulingHints,
)
from engine.scheduling.scheduler import Scheduler
from engine.step import Step
from tests.engine.conftest import Start
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import collect, config, loader_of, request, text_of, tokens_of, until
from tests.fakes.hang_guard import HANG_S, hang_guard
from tests.fakes.runner import FakeRunner


def spelling(answer: str) -> Callable[..., int]:
    """A next-token function that spells `answer` and then ends."""
    ids = [*answer.encode(), 256]

    def next_token(_: Any, work: Any) -> int:
        return ids[min(len(work.sequence.token_ids) - work.sequence.num_prompt_tokens, len(ids) - 1)]

    return next_token


def slow() -> FakeRunner:
    """2 ms a step, so that a test can act while requests run."""
    return FakeRunner(before_step=lambda _: time.sleep(0.002))


def ended(engine: AsyncEngine, reason: str) -> int:
    return dict(engine.stats().finished)[reason]


async def test_start_reports_progress_and_becomes_ready() -> None:
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    seen: list[tuple[str, float]] = []
    assert engine.state is EngineState.LOADING
    await engine.start(lambda stage, percent: seen.append((stage, percent)))
    await asyncio.sleep(0)
    assert engine.state is EngineState.READY
    assert seen == [("weights", 50.0), ("ready", 100.0)]
    await engine.close()
    assert engine.state is EngineState.STOPPED


async def test_a_loader_error_is_raised_by_start_and_later_requests_are_refused() -> None:
    def load(*_: Any) -> Any:
        raise RuntimeError("no such model")

    engine = AsyncEngine(config(), loader=load)
    with pytest.raises(RuntimeError, match="no such model"):
        await engine.start()
    assert engine.state is EngineState.FAILED
    with pytest.raises(EngineUnavailable):
        engine.generate(request("a"))
    await engine.close()


async def test_closing_gives_up_a_load_under_way() -> None:
    reached = threading.Event()

    def load(_: Any, progress: Callable[[str, float], None]) -> Any:
        for percent in range(10_000):
            progress("weights", percent / 100)
            reached.set()
            time.sleep(0.005)
        raise AssertionError("the load went on")

    engine = AsyncEngine(config(), loader=load)
    starting = asyncio.create_task(engine.start())
    await asyncio.get_running_loop().run_in_executor(None, reached.wait, 5)
    async with hang_guard():
        await engine.close()
        with pytest.raises(EngineUnavailable):
            await starting
    assert engine.state is EngineState.STOPPED


async def test_a_cancelled_start_leaves_an_engine_that_can_be_closed() -> None:
    release = threading.Event()

    def load(*arguments: Any) -> LoadedModel:
        release.wait(5)
        return LoadedModel(FakeRunner(), ByteTokenizer())

    engine = AsyncEngine(config(), loader=load)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.start(), 0.05)
    release.set()
    async with hang_guard():
        await engine.close()
    assert engine.state is EngineState.STOPPED


async def test_generate_streams_text_and_ends_with_usage_and_signals(start: Start) -> None:
    engine = await start(FakeRunner(next_token=spelling("Buenos días")))
    events = await collect(engine.generate(request("a", "hola")))
    assert text_of(events) == "Buenos días"
    last = events[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, len("Buenos días".encode()) + 1)
    assert last.signals is not None
    assert last.signals.mean_logprob == pytest.approx(-0.5)
    assert last.signals.first_entropies == (1.5,) * 8
    assert all(event.usage is None for event in events[:-1])


async def test_max_tokens_ends_with_length_and_exact_count(start: Start) -> None:
    engine = await start()
    events = await collect(engine.generate(request("a", max_tokens=1)))
    assert [event.finish_reason for event in events] == [FinishReason.LENGTH]
    assert len(tokens_of(events)) == 1


async def test_stop_string_across_tokens_cuts_the_text_and_names_itself(start: Start) -> None:
    engine = await start(FakeRunner(next_token=spelling("uno dos FIN tres")))
    events = await collect(engine.generate(request("a", stop=("FIN",))))
    assert text_of(events) == "uno dos "
    assert (events[-1].finish_reason, events[-1].stop_reason) == (FinishReason.STOP, "FIN")


async def test_choices_are_seeded_apart_and_usage_counts_the_prompt_once(start: Start) -> None:
    engine = await start()
    events = await collect(engine.generate(request("a", "hola hola", n=3, seed=5, temperature=1.0, max_tokens=6)))
    texts = [tokens_of(events, index) for index in range(3)]
    assert len({tuple(t) for t in texts}) == 3
    usages = [event.usage for event in events if event.usage is not None]
    assert len(usages) == 1
    assert (usages[0].prompt_tokens, usages[0].completion_tokens) == (9, 18)
    second = await collect(engine.generate(request("b", "hola hola", seed=6, temperature=1.0, max_tokens=6)))
    assert tokens_of(second) == texts[1]


async def test_a_later_request_starts_before_an_earlier_one_ends(start: Start) -> None:
    engine = await start(slow())
    first = engine.generate(request("a", max_tokens=200))
    await anext(first)
    second = await collect(engine.generate(request("b", max_tokens=3)))
    assert second[-1].finish_reason is FinishReason.LENGTH
    assert not first.finished
    await first.aclose()


async def test_closing_the_stream_aborts_and_frees_every_block(start: Start) -> None:
    engine = await start(slow())
    stream = engine.generate(request("a", max_tokens=200))
    await anext(stream)
    await stream.aclose()
    await until(lambda: ended(engine, "abort") == 1)
    assert engine.stats().kv.free_blocks == engine.stats().kv.num_blocks
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_stream_that_is_dropped_unread_is_aborted(start: Start) -> None:
    engine = await start(slow())
    engine.generate(request("a", max_tokens=200))
    gc.collect()
    await until(lambda: ended(engine, "abort") == 1)


async def test_a_cancelled_reader_aborts_the_request(start: Start) -> None:
    engine = await start(slow())
    await engine.pause()
    stream = engine.generate(request("a", max_tokens=200))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.02)
    await engine.resume()
    await until(lambda: ended(engine, "abort") == 1)


async def test_abort_is_idempotent_and_tolerates_unknown_ids(start: Start) -> None:
    engine = await start(slow())
    stream = engine.generate(request("a", max_tokens=200))
    await anext(stream)
    engine.abort("a", "revoked")
    engine.abort("a", "revoked")
    engine.abort("nobody")
    events = await collect(stream)
    assert (events[-1].finish_reason, events[-1].stop_reason) == (FinishReason.ABORT, "revoked")
    engine.abort("a")
    await collect(engine.generate(request("b", max_tokens=2)))


async def test_stop_gives_its_reason_and_keeps_what_was_generated(start: Start) -> None:
    engine = await start(slow())
    stream = engine.generate(request("a", max_tokens=200))
    first = await anext(stream)
    engine.stop("a", "budget", finish_reason=FinishReason.LENGTH)
    events = [first, *await collect(stream)]
    assert (events[-1].finish_reason, events[-1].stop_reason) == (FinishReason.LENGTH, "budget")
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == len(tokens_of(events))


async def test_a_running_id_is_refused_and_can_be_used_again_after_its_end(start: Start) -> None:
    engine = await start(slow())
    stream = engine.generate(request("a", max_tokens=200))
    with pytest.raises(DuplicateRequest):
        engine.generate(request("a"))
    await stream.aclose()
    again = await collect(engine.generate(request("a", max_tokens=3)))
    assert len(tokens_of(again)) == 3


async def test_more_waiting_requests_than_allowed_are_refused(start: Start) -> None:
    engine = await start(max_waiting=2)
    await engine.pause()
    kept = [engine.generate(request(str(i), max_tokens=2)) for i in range(2)]
    with pytest.raises(EngineOverloaded):
        await collect(engine.generate(request("late")))
    await engine.resume()
    for stream in kept:
        assert (await collect(stream))[-1].finish_reason is FinishReason.LENGTH


async def test_a_deadline_ends_a_running_answer_with_what_it_has_and_fails_what_never_began(start: Start) -> None:
    now = [100.0]
    engine = await start(slow(), options={"clock": lambda: now[0]}, max_num_seqs=1)
    running = engine.generate(request("a", max_tokens=200, deadline_s=101.0))
    await anext(running)
    waiting = engine.generate(request("b", max_tokens=2, deadline_s=101.0))
    now[0] = 102.0
    last = (await collect(running))[-1]
    assert last.finish_reason is FinishReason.DEADLINE
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    with pytest.raises(DeadlineExceeded):
        await collect(waiting)
    assert (running.used().prompt_tokens, waiting.used()) == (4, EngineUsage(0, 0))


async def test_what_a_request_has_cost_can_be_read_before_its_end(start: Start) -> None:
    engine = await start(slow(), max_num_seqs=1, max_num_batched_tokens=4)
    running = engine.generate(request("a", max_tokens=200))
    waiting = engine.generate(request("b", max_tokens=2))
    for _ in range(3):
        await anext(running)
    used = running.used()
    assert used.prompt_tokens == 4
    assert used.completion_tokens >= 3
    await running.aclose()
    assert running.used().completion_tokens >= 3
    await waiting.aclose()
    assert waiting.used().completion_tokens == 0


async def test_a_request_that_is_given_up_in_its_prefill_has_cost_what_was_prefilled(start: Start) -> None:
    hold = threading.Semaphore(3)

    def held(_: Step) -> None:
        hold.acquire(timeout=HANG_S)

    engine = await start(FakeRunner(before_step=held), max_num_batched_tokens=4)
    long = engine.generate(request("a", [7] * 40, max_tokens=5))
    await until(lambda: long.used().prompt_tokens == 12)
    await long.aclose()
    hold.release(100)
    await until(lambda: engine.stats().kv.free_blocks == engine.stats().kv.num_blocks)
    assert long.used().prompt_tokens in (12, 16)


async def test_score_reports_the_first_token_and_leaves_the_prompt_cached(start: Start) -> None:
    engine = await start()
    score = await engine.score(request("a", "una pregunta larga"))
    assert (score.first_entropy, score.first_margin, score.prompt_tokens) == (1.5, 0.25, 18)
    assert score.prompt_mean_logprob == pytest.approx(-sum(range(17)) / 17)
    events = await collect(engine.generate(request("b", "una pregunta larga", max_tokens=1)))
    assert events[-1].usage is not None
    assert events[-1].usage.cached_tokens == 16


async def test_embed_gives_one_vector_per_input_in_order(start: Start) -> None:
    engine = await start(max_num_batched_tokens=4)
    vectors = await engine.embed([[1, 2, 3], [4] * 10, [5]])
    assert vectors == [(6.0, 3.0), (40.0, 10.0), (5.0, 1.0)]


async def test_an_embedding_that_is_ended_before_its_vector_raises(start: Start) -> None:
    engine = await start(slow(), max_num_batched_tokens=4)
    with pytest.raises(DeadlineExceeded):
        await engine.embed([[1, 2, 3], [4] * 10], scheduling=SchedulingHints(deadline_s=time.monotonic() + 0.001))


class Encoder:
    def embed(self, token_id_lists: Sequence[Sequence[int]]) -> list[list[float]]:
        if any(ids[0] == 9 for ids in token_id_lists):
            raise RuntimeError("kernel")
        return [[float(len(ids))] for ids in token_id_lists]


async def test_a_sentence_encoder_embeds_inputs_longer_than_the_cache_and_isolates_its_faults() -> None:
    runner = FakeRunner(num_blocks=1, max_model_len=100)
    model = LoadedModel(runner, ByteTokenizer(), "", Encoder())
    engine = AsyncEngine(config(), loader=lambda *_: model)
    await engine.start()
    assert await engine.embed([[1] * 80, [2]]) == [(80.0,), (1.0,)]
    with pytest.raises(EngineFault):
        await engine.embed([[9]])
    with pytest.raises(InvalidInput):
        await engine.embed([[1] * 101])
    assert await engine.embed([[3]]) == [(1.0,)]
    with pytest.raises(InvalidInput, match="generates no text"):
        engine.generate(request("a"))
    await engine.close()
    with pytest.raises(EngineUnavailable):
        await engine.embed([[3]])


async def test_drain_refuses_new_work_and_finishes_the_old(start: Start) -> None:
    engine = await start(slow())
    stream = engine.generate(request("a", max_tokens=50))
    draining = asyncio.create_task(engine.drain())
    while engine.state is not EngineState.DRAINING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(EngineUnavailable):
        engine.generate(request("b"))
    assert (await collect(stream))[-1].finish_reason is FinishReason.LENGTH
    await draining
    await engine.resume()
    assert await collect(engine.generate(request("c", max_tokens=1)))


async def test_sleep_releases_the_weights_and_wake_brings_them_back(start: Start) -> None:
    runner = FakeRunner()
    engine = await start(runner)
    await engine.sleep()
    assert not runner.weights_loaded
    assert engine.state is EngineState.ASLEEP
    with pytest.raises(EngineUnavailable):
        engine.generate(request("a"))
    await engine.wake()
    assert runner.weights_loaded
    assert await collect(engine.generate(request("b", max_tokens=1)))


async def test_a_paused_engine_still_ends_requests_by_command_and_by_deadline(start: Start) -> None:
    engine = await start(FakeRunner(max_model_len=4096, num_blocks=2000))
    running = engine.generate(request("running", max_tokens=2000))
    await anext(running)
    await engine.pause()
    waiting = engine.generate(request("waiting", max_tokens=5))
    late = engine.generate(request("late", max_tokens=5, deadline_s=time.monotonic() + 0.05))
    engine.abort("running", "administrator")
    engine.stop("waiting", "budget")
    async with hang_guard():
        ends = [(await collect(stream))[-1] for stream in (running, waiting)]
        with pytest.raises(DeadlineExceeded):
            await collect(late)
    assert [(end.finish_reason, end.stop_reason) for end in ends] == [
        (FinishReason.ABORT, "administrator"),
        (FinishReason.STOP, "budget"),
    ]
    assert engine.state is EngineState.PAUSED
    await until(lambda: engine.stats().kv.free_blocks == 2000)


async def test_resuming_calls_off_a_sleep_that_waits_for_the_last_request(start: Start) -> None:
    runner = FakeRunner(max_model_len=4096, num_blocks=2000)
    engine = await start(runner)
    running = engine.generate(request("a", max_tokens=2000))
    await anext(running)
    falling_asleep, draining = asyncio.ensure_future(engine.sleep()), asyncio.ensure_future(engine.drain())
    await until(lambda: engine.state is EngineState.DRAINING)
    await engine.resume()
    await running.aclose()
    for called_off in (falling_asleep, draining):
        with pytest.raises(EngineUnavailable, match="resumed"):
            await called_off
    assert runner.weights_loaded
    assert (await collect(engine.generate(request("b", max_tokens=3))))[-1].finish_reason is FinishReason.LENGTH


async def test_close_tells_every_waiter(start: Start) -> None:
    engine = await start(slow())
    streams = [engine.generate(request(str(i), max_tokens=200)) for i in range(3)]
    await engine.close()
    for stream in streams:
        with pytest.raises(EngineUnavailable):
            await collect(stream)


async def test_a_broken_runner_is_replaced_and_every_waiter_told(start: Start) -> None:
    made: list[FakeRunner] = []

    def always(_: Step) -> None:
        raise RuntimeError("the device is gone")

    def build() -> FakeRunner:
        made.append(FakeRunner(before_step=None if made else always))
        return made[-1]

    engine = await start(build)
    await engine.pause()
    streams = [engine.generate(request(str(i), f"pregunta {i}", max_tokens=5)) for i in range(3)]
    await engine.resume()
    for stream in streams:
        with pytest.raises(EngineFault):
            await collect(stream)
    assert len(tokens_of(await collect(engine.generate(request("after", max_tokens=5))))) == 5
    assert made[0].closed
    assert len(made) == 2
    assert engine.stats().restarts == 1


async def test_a_request_that_kills_the_loop_twice_is_refused_and_the_rest_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Scheduler.update

    def update(self: Scheduler, step: Step, *rest: Any) -> Any:
        if any(work.sequence.request_id.startswith("bad") for work in step.work):
            raise AssertionError("a bug that this request meets")
        return original(self, step, *rest)

    both = threading.Event()

    def held(step: Step) -> None:
        """A waiter alone does not end before the other request has come."""
        if all(work.sequence.request_id.startswith("waiter") for work in step.work):
            both.wait(HANG_S)

    monkeypatch.setattr(Scheduler, "update", update)
    engine = await start(FakeRunner(before_step=held))
    for attempt in range(3):
        both.clear()
        waiter = engine.generate(request(f"waiter{attempt}", max_tokens=200))
        bad = engine.generate(request(f"bad{attempt}", "veneno"))
        both.set()
        with pytest.raises(EngineFault):
            await collect(bad)
        with pytest.raises(EngineFault):
            await collect(waiter)
        await collect(engine.generate(request(f"between{attempt}", "entre medias", max_tokens=4)))
    with pytest.raises(PoisonRequest):
        await collect(engine.generate(request("bad3", "veneno")))
    assert engine.stats().restarts == 3
    innocent = engine.generate(request("waiter2", max_tokens=100))
    others = [engine.generate(request(f"other{i}", "otra", max_tokens=20)) for i in range(3)]
    assert len(tokens_of(await collect(innocent))) == 100
    for other in others:
        assert len(tokens_of(await collect(other))) == 20


async def test_a_step_that_does_not_return_is_reported_to_its_waiters(start: Start) -> None:
    release = threading.Event()

    def held(_: Step) -> None:
        release.wait(HANG_S)

    engine = await start(FakeRunner(before_step=held), options={"watchdog_s": 0.08})
    stream = engine.generate(request("a"))
    with pytest.raises(EngineUnavailable, match="stalled"):
        await collect(stream)
    assert engine.stats().stalled_s > 0
    release.set()
    await until(lambda: ended(engine, "abort") == 1)


async def test_a_slow_reader_does_not_hold_up_the_engine(start: Start) -> None:
    engine = await start()
    unread = engine.generate(request("slow", max_tokens=100))
    for index in range(5):
        await collect(engine.generate(request(str(index), max_tokens=20)))
    await until(lambda: ended(engine, "length") == 6)
    assert len(tokens_of(await collect(unread))) == 100
