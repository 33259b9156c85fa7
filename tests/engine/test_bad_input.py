"""Each kind of bad input, sent while eight good requests run: it gets a typed error and harms nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from engine import (
    AsyncEngine,
    DuplicateRequest,
    EngineError,
    GenerationRequest,
    Grammar,
    InvalidGrammar,
    InvalidInput,
    PromptTooLong,
)
from tests.fakes.engines import collect, config, loader_of, request, tokens_of, until
from tests.fakes.runner import FakeRunner

GOOD_TOKENS = 40


def schema_in_a_circle() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"hijo": schema}
    return schema


def constrained(kind: Any, value: Any) -> GenerationRequest:
    return request("x", grammar=Grammar(kind, value))


EXPLODING = "(((a{1000}){1000}){1000}){1000}"
ENDLESS = {"$ref": "#"}

CASES: list[tuple[str, Callable[[], GenerationRequest], type[EngineError], str]] = [
    ("prompt and answer too long", lambda: request("x", max_tokens=300), PromptTooLong, "max_tokens"),
    ("prompt too long", lambda: request("x", [1] * 5000), PromptTooLong, "prompt"),
    ("id outside the vocabulary", lambda: request("x", [1, 2, 258]), InvalidInput, "prompt"),
    ("negative id", lambda: request("x", [-1]), InvalidInput, "prompt"),
    ("empty prompt", lambda: request("x", []), InvalidInput, "prompt"),
    ("n too large", lambda: request("x", n=10_000), InvalidInput, "n"),
    ("stop list too long", lambda: request("x", stop=("FIN",) * 100_000), InvalidInput, "stop"),
    ("gigantic stop string", lambda: request("x", stop=("F" * 10_000_000,)), InvalidInput, "stop"),
    ("exploding regex", lambda: constrained("regex", EXPLODING), InvalidGrammar, "grammar.regex"),
    (
        "circular schema",
        lambda: constrained("json_schema", schema_in_a_circle()),
        InvalidGrammar,
        "grammar.json_schema",
    ),
    ("endless reference", lambda: constrained("json_schema", ENDLESS), InvalidGrammar, "grammar.json_schema"),
    ("invalid grammar", lambda: constrained("grammar", "start: ((("), InvalidGrammar, "grammar.grammar"),
    ("duplicate id", lambda: request("good0"), DuplicateRequest, "request_id"),
    ("temperature not a number", lambda: request("x", temperature=float("nan")), InvalidInput, "temperature"),
    ("min above max", lambda: request("x", min_tokens=9, max_tokens=3), InvalidInput, "min_tokens"),
    ("biased id outside", lambda: request("x", logit_bias={9999: 1.0}), InvalidInput, "logit_bias"),
    ("unknown adapter", lambda: request("x", adapter="lora"), InvalidInput, "adapter"),
]


async def expected_tokens() -> list[list[int]]:
    engine = AsyncEngine(config(max_num_seqs=16), loader=loader_of(FakeRunner(num_blocks=256)))
    await engine.start()
    streams = [engine.generate(request(f"good{i}", f"pregunta {i}", max_tokens=GOOD_TOKENS)) for i in range(8)]
    tokens = [tokens_of(await collect(stream)) for stream in streams]
    await engine.close()
    return tokens


@pytest.mark.parametrize(("name", "bad", "error", "field"), CASES, ids=[case[0] for case in CASES])
async def test_bad_input_is_named_and_harms_nobody(
    name: str, bad: Callable[[], GenerationRequest], error: type[EngineError], field: str
) -> None:
    runner = FakeRunner(num_blocks=256, before_step=lambda _: time.sleep(0.001))
    engine = AsyncEngine(config(max_num_seqs=16), loader=loader_of(runner))
    await engine.start()
    try:
        good = [engine.generate(request(f"good{i}", f"pregunta {i}", max_tokens=GOOD_TOKENS)) for i in range(8)]
        with pytest.raises(error) as caught:
            await collect(engine.generate(bad()))
        assert isinstance(caught.value, InvalidInput)
        assert caught.value.field == field
        assert caught.value.limit
        assert len(str(caught.value)) < 400
        assert [tokens_of(await collect(stream)) for stream in good] == await expected_tokens()
        await until(lambda: engine.stats().kv.free_blocks == 256)
        assert engine.stats().restarts == engine.stats().step_faults == 0
    finally:
        await engine.close()
