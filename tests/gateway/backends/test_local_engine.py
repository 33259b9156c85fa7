"""The local backend over a real tiny model: loading, exact counts, aborts, and the engine's errors as ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine import (
    EngineFault,
    EngineOverloaded,
    EngineUnavailable,
    Grammar,
    InvalidGrammar,
    InvalidInput,
    PoisonRequest,
    PromptTooLong,
)
from engine.text.grammar import GrammarCompiler
from gateway.api import chat
from gateway.backends.engine_values import as_gateway_error, sampling_of
from gateway.backends.local_engine import LocalBackend, make_engine
from gateway.errors import ConfigError, ContextLengthExceeded, InvalidRequest, Unavailable
from gateway.flow.operation import EngineAction
from gateway.flow.values import (
    ChatRequest,
    Chunk,
    CompletionRequest,
    EmbeddingRequest,
    GenerationParams,
    Message,
    ModelCard,
    ModelRequest,
    SchedulingHints,
)
from gateway.settings import EngineSettings, ModelSettings
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.chunks import heard
from tests.fakes.hang_guard import hang_guard
from tests.fakes.parts import ASK
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARD = ModelCard("tiny", backend="local", context_window=256)
ENGINE = EngineSettings(device="cpu", kv_cache_bytes=16 << 20, threads=1, max_num_seqs=4)
LONG = GenerationParams(max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, max_position_embeddings=16384)
    return ModelSettings(id="tiny", path=str(folder))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tiny: ModelSettings) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend((tiny,), ENGINE)
    backend.start()
    await backend.wait()
    yield backend
    await backend.aclose()


async def start(
    backend: LocalBackend, request: ChatRequest, limit: int = 8, request_id: str = "r"
) -> AsyncIterator[Chunk]:
    return backend.generate(
        request,
        CARD,
        prepared=await backend.prepare(request, CARD),
        request_id=request_id,
        max_output_tokens=limit,
        tenant_salt=b"salt",
        scheduling=SchedulingHints("t"),
    )


async def test_while_it_loads_a_model_says_how_far_it_is(tiny: ModelSettings) -> None:
    backend = LocalBackend((tiny,), ENGINE)
    with pytest.raises(Unavailable) as caught:
        await backend.prepare(ASK, CARD)
    assert caught.value.code == "model_loading"
    assert backend.status()["state"] == "loading"
    await backend.aclose()


async def test_a_model_that_is_not_there_fails_the_start_with_its_name(tmp_path: Path) -> None:
    backend = LocalBackend((ModelSettings(id="ghost", path=str(tmp_path / "nothing")),), ENGINE)
    backend.start()
    with pytest.raises(ConfigError, match="ghost"):
        await backend.wait()
    assert backend.status()["state"] == "failed"
    with pytest.raises(Unavailable) as caught:
        await backend.prepare(ASK, replace(CARD, id="ghost"))
    assert caught.value.code == "engine_unavailable"
    await backend.aclose()


async def test_the_count_is_what_the_engine_then_reports(backend: LocalBackend) -> None:
    request = replace(
        ASK, messages=(Message.of_text("developer", "Responde en español."), Message.of_text("user", "¿Qué hora es?"))
    )
    counted = (await backend.prepare(request, CARD)).prompt_tokens
    chunks = [heard(chunk) async for chunk in await start(backend, request)]
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.prompt_tokens == counted
    assert usage.completion_tokens == sum(len(chunk.token_ids) for chunk in chunks)


async def test_an_answer_names_the_model_file_that_made_it(backend: LocalBackend) -> None:
    chunks = [heard(chunk) async for chunk in await start(backend, ASK)]
    assert chunks[-1].finish_reason in ("stop", "length")
    assert any(chunk.signals and chunk.signals.model_sha256 for chunk in chunks)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ChatRequest("tiny", (Message.of_text("user", "palabra " * 475_000),)), "messages"),
        (CompletionRequest("tiny", ("x" * 3_800_000,)), "prompt"),
        (EmbeddingRequest("tiny", ("hola", "palabra " * 400_000)), "input"),
    ],
    ids=["chat", "completion", "embedding"],
)
async def test_a_prompt_that_cannot_fit_is_refused_without_reading_it_to_its_end(
    backend: LocalBackend, request_: ModelRequest, param: str
) -> None:
    started = time.process_time()
    with pytest.raises(ContextLengthExceeded, match="at least") as caught:
        await backend.prepare(request_, CARD)
    assert caught.value.param == param
    assert "256" in caught.value.message or "255" in caught.value.message
    assert time.process_time() - started < 1.0


async def test_a_prompt_that_fills_the_window_is_counted_exactly(backend: LocalBackend) -> None:
    request = CompletionRequest(ASK.model, ("a" * CARD.context_window,), params=ASK.params)
    assert (await backend.prepare(request, CARD)).prompt_tokens == CARD.context_window


def aborted(backend: LocalBackend) -> int:
    return dict(backend._engines["tiny"].stats().finished).get("abort", 0)


async def test_closing_the_stream_aborts_in_the_engine(backend: LocalBackend) -> None:
    before = aborted(backend)
    stream = await start(backend, replace(ASK, params=LONG), limit=16_000)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    async with hang_guard():
        while aborted(backend) == before:  # noqa: ASYNC110 - the engine's snapshot has no event
            await asyncio.sleep(0.01)
    assert backend._engines["tiny"].stats().running == 0


async def test_a_later_request_does_not_wait_for_an_earlier_one(backend: LocalBackend) -> None:
    long = await start(backend, replace(ASK, params=LONG), limit=16_000, request_id="long")
    await anext(long)
    before = aborted(backend)
    short = [
        heard(chunk) async for chunk in await start(backend, replace(ASK, params=LONG), limit=2, request_id="short")
    ]
    assert short[-1].finish_reason == "length"
    await long.aclose()  # type: ignore[attr-defined]
    async with hang_guard():
        while aborted(backend) == before:  # noqa: ASYNC110 - it was still running when the short one had ended
            await asyncio.sleep(0.01)


async def test_an_embedding_is_served_from_its_tenants_share(backend: LocalBackend) -> None:
    request = EmbeddingRequest(ASK.model, ("una esclusa", "un canal"))
    prepared = await backend.prepare(request, CARD)
    _, usage = await backend.embed(request, CARD, prepared=prepared, scheduling=SchedulingHints("acme/ana", priority=3))
    shares = dict(backend._engines["tiny"].stats().shares)
    assert shares["acme/ana"].prompt_tokens == usage.prompt_tokens


async def test_every_engine_setting_reaches_the_engine(tiny: ModelSettings) -> None:
    changed = {
        "device": "cpu", "block_size": 8, "gpu_memory_utilization": 0.5, "kv_cache_bytes": 1 << 20, "max_num_seqs": 3,
        "max_num_batched_tokens": 99, "max_model_len": 64, "enable_prefix_caching": False,
        "scheduling_policy": "priority", "max_seqs_per_share": 2, "max_blocks_per_share": 9, "starvation_bound_s": 2.5,
        "max_waiting": 17, "pooling": "last", "tensor_parallel_size": 2, "threads": 1, "deterministic": True,
        "generation_config": "vllm", "kv_cache_dtype": "fp8",
    }  # fmt: skip
    assert {*changed, "watchdog_s"} == set(EngineSettings.model_fields)
    made = make_engine(tiny, EngineSettings.model_validate({**changed, "watchdog_s": 7.0}))
    assert {name: getattr(made.config, name) for name in changed} == changed
    assert made.watchdog_s == 7.0


async def test_what_the_engine_refuses_is_told_by_the_first_read(backend: LocalBackend) -> None:
    bad = replace(ASK, params=GenerationParams(logit_bias={10**6: 1.0}))
    stream = await start(backend, bad)
    with pytest.raises(InvalidRequest) as caught:
        await anext(stream)
    assert caught.value.param is not None


def alternating(folder: Path) -> ModelSettings:
    """A model whose template wants user and assistant by turns and no system message, as several families do."""
    write_tiny_model(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}"
        "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant') }}"
        "{% endif %}<|start|>{{ message.content }}<|end|>{% endfor %}",
        encoding="utf-8",
    )
    return ModelSettings(id="tiny", path=str(folder))


@pytest.mark.parametrize("roles", [("system", "user"), ("user", "user"), ("assistant",)], ids=" ".join)
async def test_roles_that_the_template_refuses_are_a_bad_request_with_its_words(
    tmp_path: Path, roles: tuple[Any, ...]
) -> None:
    backend = LocalBackend((alternating(tmp_path),), ENGINE)
    backend.start()
    await backend.wait()
    request = replace(ASK, messages=tuple(Message.of_text(role, "mi secreto") for role in roles))
    with pytest.raises(InvalidRequest, match="must alternate") as caught:
        await backend.prepare(request, CARD)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert "secreto" not in str(caught.value)
    await backend.aclose()


async def test_what_the_caller_left_open_comes_from_the_settings_then_from_the_models_own_files() -> None:
    recommended = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}

    def made(params: GenerationParams, settings: ModelSettings, recommended: dict[str, float]) -> tuple[Any, ...]:
        found = sampling_of(params, 5, settings, recommended)
        return (found.temperature, found.top_p, found.top_k, found.min_p, found.repetition_penalty)

    plain, tuned = ModelSettings(id="x"), ModelSettings(id="x", temperature=0.2, top_k=40, repetition_penalty=1.2)
    asked = GenerationParams(temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0)
    assert made(GenerationParams(), plain, {}) == (1.0, 1.0, 0, 0.0, 1.0)
    assert made(GenerationParams(), plain, recommended) == (0.7, 0.8, 20, 0.05, 1.05)
    assert made(GenerationParams(), tuned, recommended) == (0.2, 0.8, 40, 0.05, 1.2)
    assert made(asked, tuned, recommended) == (0.0, 1.0, -1, 0.0, 1.0)


async def test_vllms_text_switches_reach_the_engine() -> None:
    asked = GenerationParams(include_stop_str_in_output=True, skip_special_tokens=False)
    found = sampling_of(asked, 5, ModelSettings(id="x", stop_on_repetition=True), {})
    assert (found.include_stop_str_in_output, found.skip_special_tokens, found.stop_on_repetition) == (
        True,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong(90, 20, 100), 400, "context_length_exceeded"),
        (InvalidInput("top_k", -5, "must be at least 0"), 400, "invalid_value"),
        (PoisonRequest("killed the loop twice"), 400, "poison_request"),
        (EngineUnavailable("draining"), 503, "engine_unavailable"),
        (EngineOverloaded("queue full"), 503, "overloaded"),
        (EngineFault("kernel"), 502, "engine_fault"),
    ],
)
async def test_every_engine_error_has_a_public_form(error: Exception, status: int, code: str) -> None:
    public = as_gateway_error(error)
    assert (public.status, public.code) == (status, code)


@pytest.mark.parametrize(
    ("kind", "value", "param"),
    [
        ("json_schema", {"type": "SECRETO"}, "response_format"),
        ("regex", "(SECRETO", "guided_regex"),
        ("grammar", "start: SECRETO", "structured_outputs.grammar"),
    ],
)
async def test_a_constraint_that_cannot_be_compiled_is_named_as_the_caller_sent_it(
    kind: str, value: object, param: str
) -> None:
    source: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}]}
    sources: dict[str, dict[str, Any]] = {
        "response_format": {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}},
        "guided_regex": {"guided_regex": value},
        "structured_outputs.grammar": {"structured_outputs": {"grammar": value}},
    }
    sent = sources[param]
    params = chat.parse({**source, **sent}).params
    with pytest.raises(InvalidGrammar) as caught:
        GrammarCompiler(ByteTokenizer()).compile(Grammar(kind, value))  # type: ignore[arg-type]
    public = as_gateway_error(caught.value, params.grammar_param)
    assert (public.status, public.code, public.param) == (400, "invalid_grammar", param)
    assert "cannot be compiled" in public.message
    assert "SECRETO" not in public.message + str(public.hint)
    assert public.detail


@pytest.mark.parametrize("field", ["bad_words", "grammar.type"])
async def test_a_text_that_the_engine_refuses_is_not_repeated(field: str) -> None:
    public = as_gateway_error(InvalidInput(field, "SECRETO", "must be plain"), "guided_regex")
    assert "SECRETO" not in public.message
    assert public.param == ("bad_words" if field == "bad_words" else "guided_regex")


async def test_before_the_process_ends_what_a_pause_holds_goes_on(backend: LocalBackend) -> None:
    stream = await start(backend, replace(ASK, params=LONG), limit=40, request_id="held")
    await anext(stream)
    await backend.operations.act("tiny", EngineAction.PAUSE)
    assert backend.operations.state("tiny") == "paused"
    await backend.operations.resume_paused()
    assert [heard(chunk) async for chunk in stream][-1].finish_reason == "length"
    assert backend.operations.state("tiny") == "ready"
