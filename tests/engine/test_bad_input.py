"""Each kind of bad input, sent while eight good requests run: it gets a typed error and harms nobody."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from engine import (
    AsyncEngine,
    DuplicateRequest,
    EngineConfig,
    EngineError,
    GenerationRequest,
    Grammar,
    InvalidGrammar,
    InvalidInput,
    PromptTooLong,
)
from tests.fakes.engines import collect, config, loader_of, request, tokens_of, until
from tests.fakes.runner import FakeRunner
from tests.fakes.small_model import save_small_llama

GOOD_TOKENS = 60


def schema_in_a_circle() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"hijo": schema}
    return schema


def constrained(kind: Any, value: Any) -> GenerationRequest:
    return request("x", grammar=Grammar(kind, value))


def very_deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    return schema


DEEP = very_deep()
EXPLODING = "(((a{1000}){1000}){1000}){1000}"
ENDLESS = {"$ref": "#"}

CASES: list[tuple[str, Callable[[], GenerationRequest], type[EngineError], str]] = [
    ("prompt and answer too long", lambda: request("x", max_tokens=300), PromptTooLong, "max_tokens"),
    ("prompt too long", lambda: request("x", [1] * 5000), PromptTooLong, "prompt"),
    ("id outside the vocabulary", lambda: request("x", [1, 2, 9999]), InvalidInput, "prompt"),
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
    (
        "schema of a hundred thousand levels",
        lambda: constrained("json_schema", DEEP),
        InvalidGrammar,
        "grammar.json_schema",
    ),
    ("half a character in a regex", lambda: constrained("regex", "\ud83d"), InvalidGrammar, "grammar.regex"),
    ("half a character in a bad word", lambda: request("x", bad_words=("\ud83d",)), InvalidInput, "bad_words"),
    ("salt of another type", lambda: request("x", cache_salt="tenant"), InvalidInput, "cache_salt"),
    ("share of another type", lambda: request("x", share_key=["tenant"]), InvalidInput, "share_key"),
    ("invalid grammar", lambda: constrained("grammar", "start: ((("), InvalidGrammar, "grammar.grammar"),
    ("duplicate id", lambda: request("good0"), DuplicateRequest, "request_id"),
    ("temperature not a number", lambda: request("x", temperature=float("nan")), InvalidInput, "temperature"),
    ("min above max", lambda: request("x", min_tokens=9, max_tokens=3), InvalidInput, "min_tokens"),
    ("biased id outside", lambda: request("x", logit_bias={9999: 1.0}), InvalidInput, "logit_bias"),
    ("unknown adapter", lambda: request("x", adapter="lora"), InvalidInput, "adapter"),
]


def good_requests(engine: AsyncEngine) -> list[Any]:
    return [
        engine.generate(request(f"good{i}", f"pregunta {i}", max_tokens=GOOD_TOKENS, ignore_eos=True)) for i in range(8)
    ]


async def fake_engine(step_s: float) -> AsyncEngine:
    runner = FakeRunner(num_blocks=256, before_step=lambda _: time.sleep(step_s))
    engine = AsyncEngine(config(max_num_seqs=16), loader=loader_of(runner))
    await engine.start()
    return engine


async def expect_refusal_beside_good_requests(
    engine: AsyncEngine, bad: GenerationRequest, error: type[EngineError], field: str, expected: list[list[int]]
) -> None:
    good = good_requests(engine)
    firsts = [await anext(stream) for stream in good]
    with pytest.raises(error) as caught:
        await collect(engine.generate(bad))
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.field == field
    assert caught.value.limit
    assert len(str(caught.value)) < 400
    answers = [tokens_of([first, *await collect(stream)]) for first, stream in zip(firsts, good, strict=True)]
    assert answers == expected
    await until(lambda: engine.stats().kv.free_blocks == engine.stats().kv.num_blocks)
    assert engine.stats().restarts == engine.stats().step_faults == 0


@pytest.mark.parametrize(("name", "bad", "error", "field"), CASES, ids=[case[0] for case in CASES])
async def test_bad_input_is_named_and_harms_nobody(
    name: str, bad: Callable[[], GenerationRequest], error: type[EngineError], field: str
) -> None:
    undisturbed = await fake_engine(0.0)
    expected = [tokens_of(await collect(stream)) for stream in good_requests(undisturbed)]
    await undisturbed.close()
    engine = await fake_engine(0.001)
    try:
        await expect_refusal_beside_good_requests(engine, bad(), error, field, expected)
    finally:
        await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[AsyncEngine, list[list[int]]]]:
    """An engine over a small real model, and what it answers to the good requests when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("llama")
    save_small_llama(folder)
    settings: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "num_kv_blocks": 256,
        "max_model_len": 256,
    }
    engine = AsyncEngine(
        EngineConfig(str(folder), max_num_seqs=16, deterministic=True, cache_salt_required=False, **settings)
    )
    await engine.start()
    yield engine, [tokens_of(await collect(stream)) for stream in good_requests(engine)]
    await engine.close()


NO_TOKEN_LEFT = ("no token left", lambda: request("x", allowed_token_ids=(256,), min_tokens=2), InvalidInput)
REAL_CASES = [*CASES, (*NO_TOKEN_LEFT, "allowed_token_ids")]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "bad", "error", "field"), REAL_CASES, ids=[case[0] for case in REAL_CASES])
async def test_bad_input_harms_nobody_on_a_real_model(
    real: tuple[AsyncEngine, list[list[int]]],
    name: str,
    bad: Callable[[], GenerationRequest],
    error: type[EngineError],
    field: str,
) -> None:
    engine, expected = real
    await expect_refusal_beside_good_requests(engine, bad(), error, field, expected)
