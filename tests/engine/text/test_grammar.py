from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine import AsyncEngine, EngineFault, EngineUnavailable, EngineUsage, FinishReason, Grammar, InvalidGrammar
from engine.text.grammar import MAX_STEP_S, GrammarCompiler, GrammarMatcher
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import collect, config, loader_of, request, text_of, until
from tests.fakes.hang_guard import HANG_S, hang_guard
from tests.fakes.runner import FakeRunner

PERSON = {
    "type": "object",
    "properties": {"nombre": {"type": "string", "maxLength": 8}, "edad": {"type": "integer", "maximum": 120}},
    "required": ["nombre", "edad"],
    "additionalProperties": False,
}


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer())


async def generate(grammar: Grammar, **fields: Any) -> list[Any]:
    runner = FakeRunner(num_blocks=512, max_model_len=1024)
    engine = AsyncEngine(config(), loader=loader_of(runner))
    await engine.start()
    try:
        return await collect(engine.generate(request("a", grammar=grammar, **fields)))
    finally:
        await engine.close()


async def test_a_schema_gives_valid_json_and_stops_by_itself() -> None:
    events = await generate(Grammar("json_schema", PERSON), max_tokens=600)
    answer = json.loads(text_of(events))
    assert set(answer) == {"nombre", "edad"}
    assert isinstance(answer["edad"], int)
    assert events[-1].finish_reason is FinishReason.STOP


async def test_a_regex_constrains_the_whole_answer() -> None:
    events = await generate(Grammar("regex", r"[A-Z]{3}-\d{4}"), max_tokens=50)
    assert re.fullmatch(r"[A-Z]{3}-\d{4}", text_of(events))


async def test_a_choice_gives_one_of_its_strings() -> None:
    events = await generate(Grammar("choice", ["sí", "no", "quizás\n"]), max_tokens=50)
    assert text_of(events) in {"sí", "no", "quizás\n"}


@pytest.mark.parametrize("text", ['start: "a" /[0-9]{2}/', 'root ::= "a" [0-9] [0-9]'])
async def test_lark_and_ebnf_are_both_understood(text: str) -> None:
    events = await generate(Grammar("grammar", text), max_tokens=50)
    assert re.fullmatch("a[0-9]{2}", text_of(events))


async def test_an_answer_cut_by_max_tokens_ends_with_length() -> None:
    events = await generate(Grammar("json_schema", PERSON), max_tokens=5)
    assert events[-1].finish_reason is FinishReason.LENGTH


async def test_choices_have_matchers_of_their_own() -> None:
    events = await generate(
        Grammar("regex", "[a-z]{6}"), max_tokens=20, n=3, temperature=1.0, seed=1, logprobs=1, stop=("zzzz",)
    )
    texts = {text_of(events, index) for index in range(3)}
    assert len(texts) == 3
    assert all(re.fullmatch("[a-z]{6}", text) for text in texts)
    assert all(event.logprobs for event in events if event.token_ids)


async def test_preemption_keeps_the_grammar_s_state() -> None:
    runner = FakeRunner(num_blocks=10, max_model_len=40)
    engine = AsyncEngine(config(), loader=loader_of(runner))
    await engine.start()
    await engine.pause()
    streams = [
        engine.generate(request(str(i), f"pregunta {i}", grammar=Grammar("regex", "[a-z]{20}"), max_tokens=25))
        for i in range(4)
    ]
    await until(lambda: engine.stats().waiting == 4)
    await engine.resume()
    for stream in streams:
        assert re.fullmatch("[a-z]{20}", text_of(await collect(stream)))
    await until(lambda: engine.stats().preemptions > 0)
    await engine.close()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", "{not json"),
        ("json_schema", [1, 2]),
        ("json_schema", {"type": "nonsense"}),
        ("json_schema", {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
        ("json_schema", {"type": "string", "pattern": "(["}),
        ("json_schema", {"x": object()}),
        ("regex", "(unclosed"),
        ("regex", ""),
        ("regex", "a" * 5000),
        ("regex", "((((a{1000}){1000}){1000}){1000})"),
        ("choice", []),
        ("choice", ["a", 1]),
        ("choice", ["a"] * 2000),
        ("grammar", "start: nowhere"),
        ("grammar", "root ::= ((("),
        ("grammar", "x" * 70_000),
        ("grammar", 'start: "\ud83d"'),
        ("grammar", 'root ::= "\ud83d"'),
        ("regex", "\ud83d"),
        ("choice", ["\ud83d"]),
        ("json_schema", {"const": "\ud83d"}),
    ],
)
def test_what_cannot_be_compiled_is_refused_quickly(compiler: GrammarCompiler, kind: Any, value: Any) -> None:
    started = time.process_time()
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(Grammar(kind, value))
    assert time.process_time() - started < 5
    assert caught.value.field.startswith("grammar.")


def test_a_schema_nested_too_deeply_or_in_a_circle_is_refused(compiler: GrammarCompiler) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    circle: dict[str, Any] = {}
    circle["items"] = circle
    for schema in (deep, circle):
        with pytest.raises(InvalidGrammar, match="levels"):
            compiler.compile(Grammar("json_schema", schema))


async def test_a_recursive_schema_that_is_sound_is_accepted() -> None:
    tree = {
        "$defs": {
            "t": {
                "type": "object",
                "properties": {"h": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 1}},
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/t",
    }
    events = await generate(Grammar("json_schema", tree), max_tokens=800)
    assert events[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    if events[-1].finish_reason is FinishReason.STOP:
        json.loads(text_of(events))


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("json_schema", {"type": "SECRETO"}, "names a type that does not exist"),
        ("json_schema", {"$ref": "#/SECRETO"}, "refers to something that does not exist"),
        ("json_schema", {"not": {"const": "SECRETO"}}, "uses `not`, which is not supported"),
        ("json_schema", {"type": "string", "minLength": "SECRETO"}, "is not valid"),
        ("json_schema", {"type": "string", "pattern": "(SECRETO"}, "holds an invalid pattern"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "contradicts itself"),
        ("regex", "(?=SECRETO)b", "uses a feature that is not supported"),
        ("regex", "(SECRETO", "holds an invalid pattern"),
        ("regex", "((((a{1000}){1000}){1000}){1000})", "is too complex"),
        ("grammar", "start: SECRETO", "refers to something that does not exist"),
        ("grammar", "start: (((SECRETO", "is not valid"),
        ("grammar", "root ::= (((SECRETO", "is not valid"),
        ("grammar", "root ::= SECRETO", "refers to something that does not exist"),
    ],
)
def test_a_refusal_tells_the_kind_of_problem_and_never_repeats_the_grammar(
    compiler: GrammarCompiler, kind: Any, value: Any, problem: str
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(Grammar(kind, value))
    assert caught.value.limit.startswith(problem)
    assert "secreto" not in str(caught.value).lower()
    assert caught.value.detail


def test_a_recursive_schema_without_an_end_fails_closed(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidGrammar):
        compiler.compile(Grammar("json_schema", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}))


def test_a_token_outside_the_grammar_is_a_fault(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar("regex", "abc"))
    matcher.accept(ord("a"))
    with pytest.raises(EngineFault):
        matcher.accept(ord("z"))


def test_compiled_grammars_are_remembered_and_handed_out_fresh(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Grammar("regex", "ab"))
    first.accept(ord("a"))
    second = compiler.compile(Grammar("regex", "ab"))
    second.accept(ord("a"))
    assert not second.is_terminated


async def test_a_grammar_that_takes_too_long_is_refused_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        started = time.thread_time()
        while time.thread_time() - started < 0.5:
            pass
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr(GrammarCompiler, "compile", forever)
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()), grammar_timeout_s=0.05)
    await engine.start()
    good = engine.generate(request("good", max_tokens=10))
    with pytest.raises(InvalidGrammar, match=r"0\.05 s"):
        await collect(engine.generate(request("slow", grammar=Grammar("regex", "a"))))
    assert (await collect(good))[-1].finish_reason is FinishReason.LENGTH
    await engine.close()


async def test_a_compilation_on_a_machine_that_stands_still_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GrammarCompiler.compile

    def slowly(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        time.sleep(1.5)
        return original(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slowly)
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()), grammar_timeout_s=1.0)
    await engine.start()
    assert await collect(engine.generate(request("a", grammar=Grammar("regex", "[a-z]{3}"), max_tokens=10)))
    await engine.close()


async def test_a_compilation_that_never_ends_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def stuck(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        release.wait(HANG_S)
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr(GrammarCompiler, "compile", stuck)
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()), grammar_timeout_s=0.02)
    await engine.start()
    async with hang_guard():
        with pytest.raises(InvalidGrammar):
            await collect(engine.generate(request("a", grammar=Grammar("regex", "a"))))
    release.set()
    await engine.close()


async def test_aborting_while_the_grammar_compiles_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GrammarCompiler.compile

    def slowly(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        time.sleep(0.1)
        return original(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slowly)
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    await engine.start()
    stream = engine.generate(request("a", grammar=Grammar("regex", "[a-z]{90}"), max_tokens=100))
    await stream.aclose()
    await collect(engine.generate(request("b", grammar=Grammar("regex", "[a-z]{3}"), max_tokens=10)))
    await until(lambda: engine.stats().running == 0)
    assert engine.stats().waiting == 0
    assert dict(engine.stats().finished)["abort"] == 0
    await engine.close()


@pytest.fixture
def slow_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilations wait until the returned event is set."""
    original, release = GrammarCompiler.compile, threading.Event()

    def slowly(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        release.wait(5)
        return original(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slowly)
    yield release
    release.set()


@pytest.mark.parametrize("from_another_thread", [False, True], ids=["event loop", "another thread"])
async def test_an_abort_while_the_grammar_compiles_ends_all_choices_at_once(
    slow_compiler: threading.Event, from_another_thread: bool
) -> None:
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    await engine.start()
    stream = engine.generate(request("a", grammar=Grammar("regex", "[a-z]{9}"), n=2, seed=7))
    await asyncio.sleep(0)
    if from_another_thread:
        await asyncio.to_thread(engine.abort, "a", "administrator")
    else:
        engine.abort("a", "administrator")
    engine.abort("a", "administrator")
    async with hang_guard():
        events = await collect(stream)
    assert [(e.index, e.finish_reason, e.stop_reason) for e in events] == [
        (0, FinishReason.ABORT, "administrator"),
        (1, FinishReason.ABORT, "administrator"),
    ]
    assert [e.usage for e in events] == [None, EngineUsage(4, 0)]
    assert [e.signals.seed for e in events if e.signals is not None] == [7, 8]
    slow_compiler.set()
    again = await collect(engine.generate(request("a", grammar=Grammar("regex", "[a-z]{3}"), max_tokens=9)))
    assert again[-1].finish_reason is FinishReason.STOP
    assert engine.stats().steps <= 4
    await engine.close()


async def test_closing_the_engine_tells_who_waits_for_a_grammar(slow_compiler: threading.Event) -> None:
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    await engine.start()
    stream = engine.generate(request("a", grammar=Grammar("regex", "[a-z]{9}")))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineUnavailable):
        async with hang_guard():
            await collect(stream)


async def test_a_compiler_that_breaks_ends_its_request_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        raise KeyError("a bug of ours")

    monkeypatch.setattr(GrammarCompiler, "compile", breaks)
    engine = AsyncEngine(config(), loader=loader_of(FakeRunner()))
    await engine.start()
    good = engine.generate(request("good", max_tokens=10))
    with pytest.raises(EngineFault):
        async with hang_guard():
            await collect(engine.generate(request("bad", grammar=Grammar("regex", "a"))))
    assert (await collect(good))[-1].finish_reason is FinishReason.LENGTH
    assert "compiling a grammar failed" in caplog.text
    await engine.close()


class Standstill:
    """A matcher whose machine stands still for longer than a step may take, without computing."""

    def __init__(self) -> None:
        self.slept = 0

    def compute_bitmask(self) -> bytes:
        self.slept += 1
        time.sleep(MAX_STEP_S * 1.2)
        return bytes(16)

    def is_error(self) -> bool:
        return False


def test_a_machine_that_stands_still_fails_no_request() -> None:
    matcher = Standstill()
    GrammarMatcher(matcher).fill_bitmask(np.zeros(4, dtype=np.int32))
    assert matcher.slept == 1


class PanickingMatcher:
    """As a panic of the Rust library, which is no `Exception`."""

    def compute_bitmask(self) -> bytes:
        raise _Panic

    def is_stopped(self) -> bool:
        return False

    def consume_token(self, _: int) -> bool:
        raise _Panic


class _Panic(BaseException):
    pass


def test_a_panic_of_the_library_is_a_fault_of_its_request() -> None:
    matcher = GrammarMatcher(PanickingMatcher())
    with pytest.raises(EngineFault):
        matcher.fill_bitmask(np.zeros(4, dtype=np.int32))
    with pytest.raises(EngineFault):
        matcher.accept(1)


def test_a_pattern_that_grows_while_it_is_followed_is_refused_as_too_complex() -> None:
    """It compiles and its first tokens are drawn; the caller's pattern is at fault, not the engine."""

    class GrownMatcher:
        def compute_bitmask(self) -> bytes:
            return bytes(16)

        def consume_token(self, token_id: int) -> bool:
            return False

        def is_stopped(self) -> bool:
            return False

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "lexer error: too many states: 50000 exceeds the limit"

    matcher = GrammarMatcher(GrownMatcher(), "regex")
    steps: list[Callable[[], None]] = [
        lambda: matcher.fill_bitmask(np.zeros(4, dtype=np.int32)),
        lambda: matcher.accept(3),
    ]
    for step in steps:
        with pytest.raises(InvalidGrammar, match="too complex") as refusal:
            step()
        assert refusal.value.field == "grammar.regex"
        assert refusal.value.hint is not None
