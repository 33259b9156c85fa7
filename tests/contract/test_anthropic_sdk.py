"""The official Anthropic SDK against the whole gateway: only `base_url` and the credential are changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.fakes.stage import Stage

ASK: Any = [{"role": "user", "content": "¿Qué tal?"}]
COLD = {"temperature": 0}
"""The SDK has no parameter for it any more; other clients of this API send it."""


def sdk(stage: Stage, role: str = "analyst", sub: str = "u-claude") -> Anthropic:
    return Anthropic(base_url=stage.url, api_key=stage.token(role, sub=sub), max_retries=0)


@pytest.fixture
def client(stage: Stage) -> Iterator[Anthropic]:
    with sdk(stage) as client:
        yield client


def test_a_real_model_answers(client: Anthropic) -> None:
    answer = client.messages.create(model="tiny", messages=ASK, max_tokens=8, extra_body=COLD)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg_")
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.content[0].type == "text"
    assert 1 <= answer.usage.output_tokens <= 8
    assert answer.usage.input_tokens > 0
    assert answer._request_id is not None


def test_a_bearer_token_is_as_good_as_a_key(stage: Stage) -> None:
    with Anthropic(base_url=stage.url, auth_token=stage.token(), api_key=None, max_retries=0) as client:
        assert client.messages.create(model="mini", messages=ASK, max_tokens=8).content[0].text == "Hola, mundo!"


def test_a_stream_says_the_same_as_a_whole_answer(client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 12, "extra_body": COLD}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


def test_the_end_of_a_text_is_told_from_its_limit(client: Anthropic, stage: Stage) -> None:
    assert client.messages.create(model="mini", messages=ASK, max_tokens=64).stop_reason == "end_turn"
    stage.upstream.keeps_limits = True
    assert client.messages.create(model="mini", messages=ASK, max_tokens=2).stop_reason == "max_tokens"


def test_the_stop_sequence_that_matched_is_named(client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 24, "extra_body": COLD}
    text = client.messages.create(**asked).content[0].text
    stop = text[len(text) // 2]
    cut = client.messages.create(**asked, stop_sequences=["never in there", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in cut.content) == text[: text.index(stop)]


def test_an_answer_may_ask_for_more_than_the_window_has(client: Anthropic) -> None:
    """Agents ask for 32,000 tokens whatever the model is."""
    free = {"temperature": 0, "stop_sequences": []}
    with client.messages.stream(model="tiny", messages=ASK, max_tokens=32_000, extra_body=free) as stream:
        final = stream.get_final_message()
    assert final.stop_reason in ("model_context_window_exceeded", "end_turn")
    used = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) + final.usage.output_tokens
    assert (final.stop_reason == "end_turn") or used == client.models.retrieve("tiny").max_input_tokens


def test_the_system_prompt_comes_first(client: Anthropic, stage: Stage) -> None:
    client.messages.create(model="mini", messages=ASK, max_tokens=8, system="Sé breve.")
    client.messages.create(model="mini", messages=ASK, max_tokens=8, system=[{"type": "text", "text": "Sé breve."}])
    for seen in stage.upstream.seen:
        assert seen.body["messages"] == [
            {"role": "system", "content": "Sé breve."},
            {"role": "user", "content": "¿Qué tal?"},
        ]


def test_the_same_prompt_again_is_found_in_the_cache(client: Anthropic) -> None:
    ask: Any = [{"role": "user", "content": "Un texto largo para llenar varios bloques de la caché de prefijos. " * 3}]
    first = client.messages.create(model="tiny", messages=ask, max_tokens=1)
    again = client.messages.create(model="tiny", messages=ask, max_tokens=1)
    cached = again.usage.cache_read_input_tokens or 0
    assert cached >= 16
    assert again.usage.input_tokens + cached == first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)


def test_a_schema_binds_the_answer(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["sí", "no"]}}, "required": ["a"]}
    answer = client.messages.create(
        model="tiny",
        messages=ASK,
        max_tokens=60,
        output_config={"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}},
    )
    assert json.loads(answer.content[0].text)["a"] in ("sí", "no")


def test_counted_tokens_are_those_of_the_answer(stage: Stage, client: Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "system": "Sé breve y amable."}
    counted = client.messages.count_tokens(**asked)
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(model="tiny", messages=ASK).input_tokens < counted.input_tokens


def test_counting_is_recorded_and_uses_no_tokens(stage: Stage, client: Anthropic) -> None:
    raw = client.messages.with_raw_response.count_tokens(model="tiny", messages=ASK)
    _, completion = stage.records(raw.headers["x-request-id"])
    assert (completion["action"], completion["outcome"], completion["model_served"]) == ("tokenize", "ok", "tiny")
    assert (completion["tokens_in"], completion["tokens_out"], completion["cost_micro"]) == (0, 0, 0)


def test_counting_needs_the_right_to_use_the_model_and_counts_as_a_request(stage: Stage) -> None:
    with sdk(stage, "auditor") as client, pytest.raises(anthropic.PermissionDeniedError):
        client.messages.count_tokens(model="tiny", messages=ASK)
    with sdk(stage, "capped", sub="u-count-capped") as client:
        client.messages.count_tokens(model="tiny", messages=ASK)
        client.messages.count_tokens(model="tiny", messages=ASK)
        with pytest.raises(anthropic.RateLimitError):
            client.messages.count_tokens(model="tiny", messages=ASK)


def test_the_tokens_of_an_upstream_are_not_guessed(stage: Stage, client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.count_tokens(model="mini", messages=ASK)
    assert caught.value.error_code == "unsupported_action"
    assert stage.upstream.seen == []


def test_models_are_listed_in_anthropics_shape(client: Anthropic) -> None:
    found = list(client.models.list(limit=2))
    assert [model.id for model in found] == ["tiny", "mini", "auto"]
    assert {model.type for model in found} == {"model"}
    assert found[1].max_input_tokens == 512
    assert client.models.retrieve("tiny").display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("claude-opus-4-1")
    assert caught.value.type == "not_found_error"


def test_a_bad_token_is_an_authentication_error(stage: Stage) -> None:
    client = Anthropic(base_url=stage.url, api_key="not-a-token", max_retries=0)
    with client, pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model="tiny", messages=ASK, max_tokens=8)
    assert (caught.value.type, caught.value.error_code) == ("authentication_error", "invalid_token")
    assert caught.value.request_id is not None
    assert caught.value.body["request_id"] == caught.value.request_id  # type: ignore[index]


def test_a_forbidden_model_is_a_permission_error(stage: Stage) -> None:
    with sdk(stage, "auditor") as client, pytest.raises(anthropic.PermissionDeniedError) as caught:
        client.messages.create(model="tiny", messages=ASK, max_tokens=8)
    assert (caught.value.type, caught.value.error_code) == ("permission_error", "model_not_permitted")


def test_an_unknown_model_is_not_found(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="claude-opus-4-1", messages=ASK, max_tokens=8)
    assert (caught.value.type, caught.value.error_code) == ("not_found_error", "model_not_found")
    assert caught.value.body["error"]["hint"] == "GET /v1/models lists what you may use"  # type: ignore[index]


def test_a_prompt_too_long_is_a_bad_request(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
        client.messages.create(model="tiny", messages=[{"role": "user", "content": "palabra " * 400}], max_tokens=8)
    assert (caught.value.type, caught.value.error_code) == ("invalid_request_error", "context_length_exceeded")


def test_an_unsupported_parameter_is_a_bad_request(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="tiny", messages=ASK, max_tokens=8, container="box-1")
    assert caught.value.error_code == "unsupported_parameter"


def test_an_exhausted_window_is_a_rate_limit_error(stage: Stage) -> None:
    with sdk(stage, "capped", sub="u-claude-capped") as client:
        for _ in range(2):
            answer = client.messages.with_raw_response.create(model="tiny", messages=ASK, max_tokens=1)
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model="tiny", messages=ASK, max_tokens=1)
    assert (caught.value.type, caught.value.error_code) == ("rate_limit_error", "requests_rate_limited")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_the_sdk_raises_when_an_upstream_dies_midstream(stage: Stage, client: Anthropic) -> None:
    stage.upstream.mode = "die"
    with (
        pytest.raises(anthropic.APIStatusError, match="broke off"),
        client.messages.stream(model="mini", messages=ASK, max_tokens=64) as stream,
    ):
        list(stream.text_stream)


async def test_the_async_sdk_answers_whole_and_streamed(stage: Stage) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 6, "extra_body": COLD}
    async with AsyncAnthropic(base_url=stage.url, api_key=stage.token(), max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
    assert text == whole.content[0].text


def test_a_hang_up_in_the_middle_is_recorded(stage: Stage, client: Anthropic) -> None:
    with client.messages.stream(model="tiny", messages=ASK, max_tokens=200, extra_body={"temperature": 1.0}) as stream:
        request_id = stream.request_id
        next(iter(stream.text_stream))
    assert request_id is not None
    _, completion = stage.records(request_id)
    assert completion["outcome"] in ("client_disconnect", "ok")
