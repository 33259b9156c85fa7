"""The official OpenAI SDK against the whole gateway: only `base_url` and `api_key` are changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.fakes.stage import Stage

ASK: Any = [{"role": "user", "content": "¿Qué tal?"}]


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client


def refused(stage: Stage, role: str = "analyst", sub: str = "u-sdk") -> OpenAI:
    return OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(role, sub=sub), max_retries=0)


def test_a_real_model_answers(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=8, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_as_a_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=ASK,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_seed_gives_the_same_answer_again(client: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=16, temperature=1.5, seed=seed)
        return answer.choices[0].message.content

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_a_stop_string_ends_the_answer_before_it(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=24, temperature=0)
    text = whole.choices[0].message.content or ""
    stop = text[len(text) // 2]
    cut = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=24, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_log_probabilities_come_with_their_alternatives(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == answer.usage.completion_tokens if answer.usage else False
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) >= 2 for entry in found.content)
    assert bytes(found.content[0].bytes or []) != b""


def test_several_choices_are_drawn_separately(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=1.5, n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_choice_constraint_binds_a_model_that_knows_no_words(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=20, extra_body={"guided_choice": ["sí", "no"]}
    )
    assert answer.choices[0].message.content in ("sí", "no")


def test_a_text_completion_with_echo_repeats_the_prompt(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Érase una vez", max_tokens=4, temperature=0, echo=True)
    assert answer.choices[0].text.startswith("Érase una vez")
    assert answer.object == "text_completion"


def test_an_echo_without_an_answer_gives_the_prompt_and_its_log_probabilities(client: OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="hola", echo=True, max_tokens=0, extra_body={"prompt_logprobs": 1}
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("hola", "length")
    entries = choice.prompt_logprobs  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert (len(entries), entries[0]) == (answer.usage.prompt_tokens, None)
    assert answer.usage.completion_tokens == 0


def test_no_tokens_without_an_echo_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="hola", max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_a_text_completion_streams(client: OpenAI) -> None:
    chunks = list(client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4, temperature=0, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_embeddings_are_vectors_of_unit_length(client: OpenAI) -> None:
    answer = client.embeddings.create(model="tiny", input=["hola", "adiós"])
    assert [row.index for row in answer.data] == [0, 1]
    assert sum(value * value for value in answer.data[0].embedding) == pytest.approx(1.0, abs=1e-3)
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens > 0


def test_the_same_prompt_again_is_found_in_the_cache(client: OpenAI) -> None:
    ask: Any = [{"role": "user", "content": "Un texto bastante largo para llenar varios bloques de la caché. " * 2}]
    client.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    again = client.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= 16


def test_another_tenant_does_not_find_it(stage: Stage, client: OpenAI) -> None:
    ask: Any = [{"role": "user", "content": "Este texto pertenece a un solo inquilino y a nadie más en el mundo. " * 2}]
    client.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(tenant="other"), max_retries=0) as stranger:
        answer = stranger.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(("data_class", "found"), [("internal", True), ("confidential", False)])
def test_another_data_class_of_the_same_caller_does_not_find_it(client: OpenAI, data_class: str, found: bool) -> None:
    text = f"Este texto se pide de nuevo como {data_class} y se encuentra solo donde debe. " * 2
    ask: Any = [{"role": "user", "content": text}]
    internal = client.with_options(default_headers={"x-esclusa-data-class": "internal"})
    internal.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    again = client.with_options(default_headers={"x-esclusa-data-class": data_class})
    answer = again.chat.completions.create(model="tiny", messages=ask, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert ((answer.usage.prompt_tokens_details.cached_tokens or 0) > 0) is found


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "mini", "auto"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_bad_token_is_an_authentication_error(stage: Stage) -> None:
    client = OpenAI(base_url=f"{stage.url}/v1", api_key="not-a-token", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_token"


def test_a_forbidden_model_is_a_permission_error(stage: Stage) -> None:
    with refused(stage, "auditor") as client, pytest.raises(openai.PermissionDeniedError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK)
    assert caught.value.code == "model_not_permitted"
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    assert caught.value.code == "model_not_found"


def test_a_prompt_too_long_is_a_bad_request_with_the_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "palabra " * 400}])
    assert caught.value.code == "context_length_exceeded"


def test_an_unsupported_parameter_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK, extra_body={"chat_template": "{{7*7}}"})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "chat_template")


def test_a_token_outside_the_vocabulary_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt=[999_999], max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=ASK, logit_bias={"999999": 1})
    assert client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1).choices


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_regex": "(unclosed"},
        {"guided_grammar": "start: nonsense"},
        {"guided_json": {"type": "objekt"}},
    ],
)
def test_a_constraint_that_cannot_be_compiled_is_a_bad_request(client: OpenAI, constraint: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=ASK, max_tokens=2, extra_body=constraint)
    assert client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1).choices


@pytest.mark.parametrize("pattern", ["((a+)+b)", "(a|a)*b", "(a{0,200}){0,200}b", "a{1,1000000}"])
def test_an_explosive_pattern_neither_hangs_nor_harms_the_next_request(client: OpenAI, pattern: str) -> None:
    with contextlib.suppress(openai.BadRequestError):
        client.chat.completions.create(
            model="tiny", messages=ASK, max_tokens=2, extra_body={"guided_regex": pattern}, timeout=60
        )
    assert client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1).choices


def test_an_exhausted_window_is_a_rate_limit_error(stage: Stage) -> None:
    with refused(stage, "capped", sub="u-sdk-capped") as client:
        for _ in range(2):
            client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1)
    assert caught.value.code == "requests_rate_limited"


def test_the_sdk_raises_when_an_upstream_dies_midstream(stage: Stage, client: OpenAI) -> None:
    stage.upstream.mode = "die"
    with pytest.raises(openai.APIError, match="broke off"):
        list(client.chat.completions.create(model="mini", messages=ASK, stream=True))


async def test_the_async_sdk_streams(stage: Stage) -> None:
    async with AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=ASK, max_tokens=6, temperature=0, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


async def test_the_async_sdk_answers_many_at_once_as_one_by_one(stage: Stage) -> None:
    async with AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:

        async def ask(number: int) -> str | None:
            answer = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"número {number}"}],
                max_tokens=10,
                temperature=0,
            )
            return answer.choices[0].message.content

        alone = [await ask(number) for number in range(6)]
        assert list(await asyncio.gather(*(ask(number) for number in range(6)))) == alone


def test_a_hang_up_in_the_middle_frees_the_engine_and_is_recorded(stage: Stage, client: OpenAI) -> None:
    stream = client.chat.completions.with_raw_response.create(
        model="tiny", messages=ASK, max_tokens=200, temperature=1.0, stream=True, extra_body={"ignore_eos": True}
    )
    request_id = stream.headers["x-request-id"]
    for _ in stream.parse():
        break
    stream.http_response.close()
    _, completion = stage.records(request_id)
    assert completion["outcome"] in ("client_disconnect", "ok")
    assert completion["tokens_out"] >= 1
    assert client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1).choices


def test_evidence_of_the_engine_is_in_the_record(stage: Stage, client: OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(model="tiny", messages=ASK, max_tokens=4, seed=9)
    intent, completion = stage.records(answer.headers["x-request-id"])
    record = json.loads(bytes(completion["rec"]))
    assert record["engine"]["mean_logprob_micro"] < 0
    assert record["engine"]["prefill_us"] > 0
    assert len(record["what"]["model_sha256"]) == 64
    assert len(record["what"]["kernels_sha256"]) == 64
    assert intent["policy_version"] == completion["policy_version"] == 1


LITELLM_OVERFLOW = ("This model's maximum context length is", "prompt is too long")
"""Two of the phrases by which LiteLLM, LangChain, CrewAI and aider recognize an overflow, and shorten and try again."""


@pytest.mark.parametrize("max_tokens", [1, 200])
def test_a_context_overflow_is_told_in_openais_words(client: OpenAI, max_tokens: int) -> None:
    long = [{"role": "user", "content": "palabra " * 300}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=long, max_tokens=max_tokens)  # type: ignore[arg-type]
    assert caught.value.code == "context_length_exceeded"
    assert any(phrase in caught.value.message for phrase in LITELLM_OVERFLOW)


def test_a_completion_that_leaves_no_room_for_max_tokens_is_told_so_too(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK, max_tokens=100_000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")
    assert re.search(r"This model's maximum context length is \d+ tokens. However, you req", caught.value.message)
