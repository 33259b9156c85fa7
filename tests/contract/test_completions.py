"""`/v1/completions` beyond one prompt: lists of prompts, and the best of several answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.fakes.stage import Stage
from tests.fakes.tiny_model import byte_tokenizer

PROMPTS = ["hola, the mundo", "La capital", "esclusa y "]


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client


def ids_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text).ids)


def completed(client: OpenAI, prompt: Any, **params: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **{"temperature": 0, "max_tokens": 5, **params})


@pytest.mark.parametrize("as_ids", [False, True], ids=["texts", "token ids"])
def test_each_prompt_of_a_list_is_answered_as_if_alone(client: OpenAI, as_ids: bool) -> None:
    prompts: list[Any] = [ids_of(text) for text in PROMPTS] if as_ids else PROMPTS
    alone = [completed(client, prompt) for prompt in prompts]
    together = completed(client, prompts)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == [one.choices[0].text for one in alone]
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(together.usage, name) == sum(getattr(one.usage, name) for one in alone)


def test_the_choices_of_the_first_prompt_come_first(client: OpenAI) -> None:
    answer = completed(client, PROMPTS[:2], n=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(answer.choices, [*PROMPTS[:1] * 2, *PROMPTS[1:2] * 2], strict=True):
        assert choice.text.startswith(prompt)


def test_a_stream_of_several_prompts_says_the_same(client: OpenAI) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 1}
    whole = completed(client, PROMPTS, **asked)
    texts, scores, ends = ["", "", ""], [list[Any](), list[Any](), list[Any]()], dict[int, str]()
    usage = None
    for event in completed(client, PROMPTS, stream=True, stream_options={"include_usage": True}, **asked):
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] += choice.text
            scores[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert scores == [choice.logprobs.token_logprobs for choice in whole.choices]
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage.model_dump() == whole.usage.model_dump()


def test_the_prompts_log_probabilities_are_told_with_its_own_choice(client: OpenAI) -> None:
    answer = completed(client, PROMPTS, extra_body={"prompt_logprobs": 0})
    assert [len(choice.prompt_logprobs) for choice in answer.choices] == [len(ids_of(text)) for text in PROMPTS]


def test_an_upstream_gets_the_list_as_it_is(stage: Stage, client: OpenAI) -> None:
    client.completions.create(model="mini", prompt=PROMPTS[:1], max_tokens=2)
    assert stage.upstream.seen[-1].body["prompt"] == PROMPTS[0]
    client.completions.create(model="mini", prompt=PROMPTS, max_tokens=2)
    assert stage.upstream.seen[-1].body["prompt"] == PROMPTS


def test_the_best_of_several_answers_is_given_and_all_are_paid_for(client: OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 1.5, "seed": 7, "logprobs": 0, "extra_body": {"ignore_eos": True}}
    every = completed(client, PROMPTS[0], n=4, **asked)
    means = sorted((sum(one.logprobs.token_logprobs) / 5 for one in every.choices), reverse=True)
    best = completed(client, PROMPTS[0], n=2, best_of=4, **asked)
    found = [sum(one.logprobs.token_logprobs) / 5 for one in best.choices]
    assert found == pytest.approx(means[:2], abs=1e-4)
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage.completion_tokens == 20


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"suffix": "fin"}, "suffix"),
        ({"prompt": ["a"] * 128, "n": 3}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt.1"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client: OpenAI, params: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        completed(client, **{"prompt": "hola", **params})
    assert refused.value.param == param


def test_a_best_of_that_asks_for_nothing_more_is_accepted(client: OpenAI) -> None:
    assert len(completed(client, "hola", best_of=1).choices) == 1
    assert len(completed(client, "hola", best_of=2, n=2).choices) == 2
