"""An OpenAI-compatible upstream as a backend: what is sent, what comes back, retries and every kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from pydantic import SecretStr

from gateway.backends.openai_http import OpenAIBackend
from gateway.backends.openai_wire import refusal
from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest, Unavailable, UpstreamFailed
from gateway.flow.values import (
    ChatRequest,
    Chunk,
    CompletionRequest,
    EmbeddingRequest,
    GenerationParams,
    ModelCard,
    Prepared,
    SchedulingHints,
)
from gateway.settings import UpstreamSettings
from tests.fakes.chunks import Heard, heard
from tests.fakes.openai_upstream import Upstream
from tests.fakes.parts import ASK

CARD = ModelCard("mini", backend="up", upstream_model="up-mini")
WHOLE = replace(ASK, stream=False)


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        yield upstream


@pytest_asyncio.fixture
async def backend(upstream: Upstream) -> AsyncIterator[OpenAIBackend]:
    settings = UpstreamSettings(base_url=upstream.url, api_key=SecretStr("k-1"), read_timeout_s=1.0, retries=1)
    backend = OpenAIBackend("up", settings)
    yield backend
    await backend.aclose()


def start(backend: OpenAIBackend, request: ChatRequest | CompletionRequest) -> AsyncIterator[Chunk]:
    return backend.generate(
        request,
        CARD,
        prepared=Prepared(),
        request_id="r-1",
        max_output_tokens=9,
        tenant_salt=b"s",
        scheduling=SchedulingHints("t"),
    )


async def run(backend: OpenAIBackend, request: ChatRequest | CompletionRequest) -> list[Heard]:
    return [heard(chunk) async for chunk in start(backend, request)]


async def failed(backend: OpenAIBackend, request: ChatRequest, kind: type[GatewayError]) -> GatewayError:
    with pytest.raises(kind) as caught:
        await run(backend, request)
    return caught.value


@pytest.mark.parametrize("request_", [ASK, WHOLE])
async def test_text_finish_and_usage_come_back(backend: OpenAIBackend, request_: ChatRequest) -> None:
    chunks = await run(backend, request_)
    assert "".join(chunk.text for chunk in chunks) == "Hola, mundo!"
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == (11, 4, "upstream")


async def test_the_request_leaves_before_anybody_reads(backend: OpenAIBackend, upstream: Upstream) -> None:
    await run(backend, ASK)
    stream = start(backend, ASK)
    for _ in range(50):
        await asyncio.sleep(0.01)
        if len(upstream.seen) == 2:
            break
    assert len(upstream.seen) == 2
    await stream.aclose()  # type: ignore[attr-defined]


async def test_what_is_sent_is_what_was_validated(backend: OpenAIBackend, upstream: Upstream) -> None:
    params = GenerationParams(
        temperature=0.0,
        seed=3,
        stop=("fin",),
        top_k=5,
        logit_bias={7: -1.0},
        logprobs=True,
        top_logprobs=2,
        min_tokens=1,
    )
    await run(backend, replace(WHOLE, params=params))
    (seen,) = upstream.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == "Bearer k-1"
    assert seen.headers["x-request-id"] == "r-1"
    assert seen.body == {
        "model": "up-mini",
        "messages": [{"role": "user", "content": "Hola"}],
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 3,
        "stop": ["fin"],
        "top_k": 5,
        "logit_bias": {"7": -1.0},
        "min_tokens": 1,
        "logprobs": True,
        "top_logprobs": 2,
    }


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        ({"type": "json_object", "value": None}, {"response_format": {"type": "json_object"}}),
        ({"type": "regex", "value": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    ],
)
async def test_a_constraint_is_passed_on(
    backend: OpenAIBackend, upstream: Upstream, grammar: dict[str, object], sent: dict[str, object]
) -> None:
    await run(backend, replace(WHOLE, params=GenerationParams(grammar=grammar)))
    assert sent.items() <= upstream.seen[0].body.items()


async def test_a_text_completion_uses_its_own_path(backend: OpenAIBackend, upstream: Upstream) -> None:
    request = CompletionRequest(ASK.model, ("Érase",), params=ASK.params, stream=ASK.stream)
    assert "".join(chunk.text for chunk in await run(backend, request)) == "Hola, mundo!"
    assert upstream.seen[0].path == "/v1/completions"
    assert upstream.seen[0].body["prompt"] == "Érase"


async def test_embeddings_come_back_in_order(backend: OpenAIBackend) -> None:
    asked = EmbeddingRequest(ASK.model, ("a", "b"))
    found, usage = await backend.embed(asked, CARD, prepared=Prepared(), scheduling=SchedulingHints("t"))
    assert found == ((0.5, -0.25, 0.0), (0.5, -0.25, 1.0))
    assert usage.prompt_tokens == 6


async def test_one_connection_serves_streams_one_after_the_other(backend: OpenAIBackend, upstream: Upstream) -> None:
    for _ in range(4):
        await run(backend, ASK)
    assert upstream.connections == 1


async def test_a_stale_connection_is_replaced_without_an_error(backend: OpenAIBackend, upstream: Upstream) -> None:
    upstream.mode = "drop"
    for _ in range(5):
        assert len(await run(backend, WHOLE)) == 2
    assert len(upstream.seen) == 5


async def test_a_stream_that_breaks_off_is_never_a_clean_end(backend: OpenAIBackend, upstream: Upstream) -> None:
    upstream.mode = "die"
    stream = start(backend, ASK)
    assert [(await anext(stream)).text, (await anext(stream)).text] == ["Hola", ", "]
    with pytest.raises(UpstreamFailed):
        await anext(stream)
    assert len(upstream.seen) == 1


async def test_an_upstream_that_hangs_is_unavailable_and_not_asked_twice(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    upstream.mode = "hang"
    error = await failed(backend, WHOLE, Unavailable)
    assert error.code == "upstream_unavailable"
    assert len(upstream.seen) == 1
    assert backend.status()["state"] == "failed"


async def test_an_upstream_that_came_back_is_ready_again(backend: OpenAIBackend, upstream: Upstream) -> None:
    upstream.mode = "hang"
    await failed(backend, WHOLE, Unavailable)
    upstream.mode = "ok"
    await run(backend, WHOLE)
    assert backend.status()["state"] == "ready"


@pytest.mark.parametrize(
    ("mode", "kind", "code"),
    [
        ("error", UpstreamFailed, "upstream_failed"),
        ("busy", Unavailable, "upstream_overloaded"),
        ("refuse", InvalidRequest, "upstream_refused"),
        ("garbage", Unavailable, "upstream_unavailable"),
    ],
)
async def test_each_failure_has_its_code_and_never_the_upstreams_text(
    backend: OpenAIBackend, upstream: Upstream, mode: str, kind: type[GatewayError], code: str
) -> None:
    upstream.mode = mode
    error = await failed(backend, WHOLE, kind)
    assert error.code == code
    assert "secret" not in f"{error.message}{error.hint}"


def test_an_upstreams_context_error_keeps_its_meaning() -> None:
    raw = b'{"error": {"code": "context_length_exceeded", "message": "secret of the upstream"}}'
    error = refusal(400, {}, raw)
    assert isinstance(error, ContextLengthExceeded)
    assert "secret" not in error.message
    assert "This model's maximum context length is" in error.message


def test_a_wrong_key_of_ours_is_not_the_callers_fault() -> None:
    assert refusal(401, {}, b"{}").status == 502


async def test_closing_the_stream_hangs_up_on_the_upstream(backend: OpenAIBackend, upstream: Upstream) -> None:
    upstream.mode, upstream.words = "slow", tuple("abcdefghijklmnop")
    stream = start(backend, ASK)
    assert (await anext(stream)).text == "a"
    await stream.aclose()  # type: ignore[attr-defined]
    for _ in range(100):
        await asyncio.sleep(0.02)
        if upstream.aborted:
            break
    assert upstream.aborted == 1
