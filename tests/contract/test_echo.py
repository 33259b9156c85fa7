"""`echo` with `logprobs`: the prompt's log-probabilities as the completions of OpenAI and vLLM give them, which
evaluation harnesses read. The reference is the same model in Hugging Face's own implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch
import transformers
from openai import OpenAI

from tests.fakes.stage import Stage
from tests.fakes.tiny_model import byte_tokenizer

SPANISH = "Érase una vez the esclusa, 漢字 y 🚢."
NEAR = 1e-4


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def stage_overrides(stage_overrides: dict[str, Any]) -> dict[str, Any]:
    """In the precision of the reference."""
    exact = tuple(model | ({"dtype": "float32"} if "path" in model else {}) for model in stage_overrides["models"])
    return stage_overrides | {"models": exact}


@pytest.fixture(scope="module")
def twin(tiny_model_path: Path) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(tiny_model_path).eval()


def ids_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text).ids)


def rows(twin: Any, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of every token of the vocabulary, before each token but the first."""
    with torch.inference_mode():
        logprobs: torch.Tensor = twin(torch.tensor([ids])).logits[0].log_softmax(-1)
    return logprobs


def scores(twin: Any, ids: list[int]) -> list[float]:
    logprobs = rows(twin, ids)
    return [logprobs[at, token].item() for at, token in enumerate(ids[1:])]


def completed(client: OpenAI, prompt: Any, **params: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **{"echo": True, "logprobs": 1, **params})


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "token ids"])
def test_the_prompts_log_probabilities_are_those_of_the_reference(
    client: OpenAI, twin: Any, max_tokens: int, as_ids: bool
) -> None:
    ids = ids_of(SPANISH)
    answer = completed(client, [ids] if as_ids else SPANISH, max_tokens=max_tokens, temperature=0, logprobs=2)
    (choice,) = answer.choices
    found = choice.logprobs
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert found.token_logprobs[1 : len(ids)] == pytest.approx(scores(twin, ids), abs=NEAR)
    assert len(found.tokens) == len(ids) + answer.usage.completion_tokens
    assert {len(values) for values in (found.token_logprobs, found.top_logprobs, found.text_offset)} == {
        len(found.tokens)
    }
    logprobs = rows(twin, ids)
    for at in range(1, len(ids)):
        best = sorted(logprobs[at - 1].topk(2).values.tolist(), reverse=True)
        assert sorted(found.top_logprobs[at].values(), reverse=True)[:2] == pytest.approx(best, abs=NEAR)
        assert found.top_logprobs[at][found.tokens[at]] == found.token_logprobs[at]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens <= max_tokens) == (len(ids), True)
    assert choice.text.startswith(SPANISH)


def test_every_offset_points_at_its_token_in_the_text(client: OpenAI) -> None:
    (choice,) = completed(client, SPANISH, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}).choices
    found, parts = choice.logprobs, 0
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if token.startswith("bytes:"):
            parts += 1
            shown = choice.text[offset : offset + 1].encode()
            assert bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) in shown or shown == "\ufffd".encode()
        else:
            assert choice.text[offset:].startswith(token)
    assert parts >= len("É漢字🚢".encode())
    assert found.text_offset == sorted(found.text_offset)


def loglikelihood(client: OpenAI, context: str, continuation: str, max_tokens: int) -> tuple[float, bool]:
    """As lm-evaluation-harness computes it from a completion that echoes."""
    begin, answer = (
        len(ids_of(context)),
        completed(client, context + continuation, max_tokens=max_tokens, temperature=0),
    )
    found, made = answer.choices[0].logprobs, answer.usage.completion_tokens
    end = len(found.token_logprobs) - made
    greedy = all(
        score == max(top.values())
        for score, top in zip(found.token_logprobs[begin:end], found.top_logprobs[begin:end], strict=True)
    )
    return sum(found.token_logprobs[begin:end]), greedy


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_loglikelihood_task_gets_the_references_numbers(client: OpenAI, twin: Any, max_tokens: int) -> None:
    context, continuations = "La capital de Francia es", [" París", " the", " esesclusa"]
    start = ids_of(context)
    for _ in range(4):  # what the model itself would say is a greedy continuation
        best = int(rows(twin, start)[-1].argmax())
        start.append(best)
    likely = byte_tokenizer().decode(start[len(ids_of(context)) :], skip_special_tokens=False)
    if ids_of(context + likely) == start:
        continuations.append(likely)
    for continuation in continuations:
        ids, begin = ids_of(context + continuation), len(ids_of(context))
        logprobs = rows(twin, ids)
        expected = sum(scores(twin, ids)[begin - 1 :])
        expected_greedy = all(int(logprobs[at - 1].argmax()) == ids[at] for at in range(begin, len(ids)))
        found, greedy = loglikelihood(client, context, continuation, max_tokens)
        assert found == pytest.approx(expected, abs=1e-3)
        assert greedy == expected_greedy


def test_a_token_that_is_the_most_likely_one_is_told_as_greedy(client: OpenAI, twin: Any) -> None:
    ids = ids_of("La capital de Francia es")
    best = int(rows(twin, ids)[-1].argmax())
    found = completed(client, [*ids, best], max_tokens=0).choices[0].logprobs
    assert found.token_logprobs[-1] == max(found.top_logprobs[-1].values())
    assert found.token_logprobs[-1] == pytest.approx(rows(twin, ids)[-1].max().item(), abs=NEAR)


def test_the_same_prompt_again_has_the_same_values_in_full(client: OpenAI) -> None:
    prompt = "Un texto bastante largo para llenar varios bloques de la caché. " * 2
    client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    first, again = (completed(client, prompt, max_tokens=1, temperature=0).choices[0].logprobs for _ in range(2))
    assert len(first.tokens) == len(ids_of(prompt)) + 1
    assert again.tokens == first.tokens
    assert again.token_logprobs[1:] == pytest.approx(first.token_logprobs[1:], abs=NEAR)


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_stream_says_the_same_as_a_whole_answer(client: OpenAI, max_tokens: int) -> None:
    asked: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0, "logprobs": 2}
    (whole,) = completed(client, SPANISH, **asked).choices
    text, joined = "", dict[str, list[Any]]()
    for chunk in completed(client, SPANISH, stream=True, **asked):
        text += chunk.choices[0].text
        for name, values in (
            (chunk.choices[0].logprobs or openai.types.completion_choice.Logprobs.model_construct())
            .model_dump(include={"tokens", "token_logprobs", "top_logprobs", "text_offset"})
            .items()
        ):
            joined.setdefault(name, []).extend(values)
    assert (text, joined) == (whole.text, whole.logprobs.model_dump())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_each_of_several_choices_has_the_prompt_first(client: OpenAI, twin: Any, stream: bool) -> None:
    ids = ids_of("hola, the mundo")
    found: dict[int, list[float | None]] = {0: [], 1: []}
    answer = completed(client, "hola, the mundo", n=2, max_tokens=2, temperature=1.5, seed=3, stream=stream)
    for part in answer if stream else [answer]:
        for choice in part.choices:
            found[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
    for values in found.values():
        assert values[0] is None
        assert values[1 : len(ids)] == pytest.approx(scores(twin, ids), abs=NEAR)
        assert len(ids) < len(values) <= len(ids) + 2


def test_a_prompt_of_one_token_is_null_alone(client: OpenAI) -> None:
    found = completed(client, [70], max_tokens=0).choices[0].logprobs
    assert (found.token_logprobs, found.top_logprobs, found.text_offset) == ([None], [None], [0])


def test_without_log_probabilities_an_echo_has_none(client: OpenAI) -> None:
    (choice,) = completed(client, "hola", max_tokens=0, logprobs=None).choices
    assert (choice.text, choice.logprobs, hasattr(choice, "prompt_logprobs")) == ("hola", None, False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_echo_of_an_upstream_is_not_taken_for_what_it_generated(stage: Stage, stream: bool) -> None:
    prompt = "Un texto que es más largo que la respuesta. " * 4
    stage.upstream.words = (prompt, " Sí")
    body = {"model": "mini", "prompt": prompt, "echo": True, "max_tokens": 1, "stream": stream}
    answer = httpx2.post(f"{stage.url}/v1/completions", json=body, headers=stage.headers())
    assert stage.upstream.seen[-1].body["echo"] is True
    if not stream:
        assert answer.json()["choices"][0]["text"] == prompt + " Sí"
        return
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == prompt + " Sí"


def test_an_upstream_is_not_asked_to_echo_token_ids(stage: Stage) -> None:
    body = {"model": "mini", "prompt": [5, 6], "echo": True, "logprobs": 1, "max_tokens": 1}
    answer = httpx2.post(f"{stage.url}/v1/completions", json=body, headers=stage.headers())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", "echo")
    assert stage.upstream.seen == []
