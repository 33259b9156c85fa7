"""What an upstream sends is not trusted: whatever has another shape is the upstream's failure, never ours."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.api import chat
from gateway.backends.openai_wire import request_body, stream_chunks, vectors, whole_chunks
from gateway.errors import UpstreamFailed
from gateway.flow.values import ChatRequest, ChoiceEnd, ModelCard
from tests.fakes.chunks import Heard, heard

GOOD = {"index": 0, "message": {"content": "Hola"}, "finish_reason": "stop"}
DELTA = {"index": 0, "delta": {"content": "Hola"}}


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{**GOOD, **fields}]}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{**DELTA, **fields}]}


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [1]},
        choice(message="Hola"),
        choice(message={"content": ["Hola"]}),
        choice(index="a"),
        choice(index=-1),
        choice(index=2),
        choice(index=True),
        choice(finish_reason=7),
        choice(logprobs={"content": [1]}),
        choice(logprobs={"tokens": 1, "token_logprobs": [0.5]}),
        choice() | {"usage": {"prompt_tokens": "many"}},
        choice() | {"usage": {"completion_tokens": -4}},
        choice() | {"usage": {"prompt_tokens": 10**15}},
        choice() | {"usage": {"prompt_tokens_details": 3}},
        {"choices": [GOOD, GOOD]},
    ],
)
def test_a_whole_answer_of_another_shape_is_the_upstreams_failure(body: dict[str, Any]) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        whole_chunks(orjson.dumps(body), "chat", choices=2)
    assert caught.value.code == "upstream_invalid"


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [1]},
        {"choices": 1},
        delta(delta="Hola"),
        delta(delta={"content": ["Hola"]}),
        delta(index="a"),
        delta(index=-1),
        delta(index=2),
        delta(finish_reason=7),
        delta(logprobs={"content": [1]}),
        {"choices": [], "usage": {"prompt_tokens": "many"}},
        {"choices": [], "usage": {"completion_tokens": -4}},
    ],
)
def test_an_event_of_another_shape_is_the_upstreams_failure(body: dict[str, Any]) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        stream_chunks(orjson.dumps(body), "chat", choices=2)
    assert caught.value.code == "upstream_invalid"


@pytest.mark.parametrize(
    "body",
    [
        {"data": 1},
        {"data": [1]},
        {"data": [{"index": 0, "embedding": ["a"]}]},
        {"data": [{"index": 0, "embedding": [0.5]}]},
        {"data": [{"index": 0, "embedding": [0.5]}, {"index": 0, "embedding": [0.5]}]},
        {"data": [{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": [0.5]}], "usage": {"prompt_tokens": [1]}},
    ],
)
def test_vectors_of_another_shape_or_number_are_the_upstreams_failure(body: dict[str, Any]) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        vectors(orjson.dumps(body), inputs=2)
    assert caught.value.code == "upstream_invalid"


def test_absent_and_null_fields_are_no_failure() -> None:
    (chunk,) = whole_chunks(b'{"choices": [{"message": {"content": null}}], "usage": null}', "chat", choices=1)
    assert heard(chunk) == Heard(finish_reason="stop")
    assert stream_chunks(b'{"choices": [{"delta": null, "finish_reason": null}]}', "chat", choices=1) == []


@pytest.mark.parametrize(
    ("said", "told"), [("length", "length"), ("function_call", "tool_calls"), ("because 12345678Z", "stop")]
)
def test_why_an_answer_ended_is_told_in_known_words_only(said: str, told: str) -> None:
    (streamed,) = stream_chunks(orjson.dumps(delta(finish_reason=said)), "chat", choices=1)
    (whole,) = whole_chunks(orjson.dumps(choice(finish_reason=said)), "chat", choices=1)
    assert (heard(streamed).finish_reason, heard(whole).finish_reason) == (told, told)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_null_of_an_echoed_prompts_first_token_stays_null(streamed: bool) -> None:
    logprobs = {"tokens": ["Hola", " sí"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {" sí": -0.5}]}
    body = {"choices": [{"index": 0, "text": "Hola sí", "finish_reason": "length", "logprobs": logprobs}]}
    read = stream_chunks if streamed else whole_chunks
    first, second = heard(read(orjson.dumps(body), "completions", choices=1)[0]).logprobs
    assert (first.logprob, first.top) == (None, ())
    assert (second.logprob, [(top.token, top.logprob) for top in second.top]) == (-0.5, [(" sí", -0.5)])


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_reaches_the_upstream_as_strict_as_it_was_asked_for(strict: bool | None) -> None:
    form: dict[str, Any] = {"name": "ficha", "description": "Una ficha", "schema": {"type": "object"}}
    form |= {} if strict is None else {"strict": strict}
    body = {
        "model": "mini",
        "messages": [{"role": "user", "content": "Hola"}],
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    request = chat.parse(body)
    assert isinstance(request, ChatRequest)
    sent = orjson.loads(request_body(request, ModelCard("mini", backend="up"), 9))
    assert sent["response_format"] == body["response_format"]


def test_a_constraint_of_vllm_is_strict() -> None:
    request = chat.parse({"model": "mini", "messages": [{"role": "user", "content": "a"}], "guided_json": {"a": 1}})
    assert isinstance(request, ChatRequest)
    sent = orjson.loads(request_body(request, ModelCard("mini", backend="up"), 9))
    assert sent["response_format"]["json_schema"] == {"name": "answer", "strict": True, "schema": {"a": 1}}


@pytest.mark.parametrize(
    ("said", "expected"), [("FIN", "FIN"), (7, 7), (None, None), ("x" * 300, None), (["FIN"], None)]
)
def test_the_stop_string_that_an_upstream_names_is_kept_as_far_as_it_can_be_one(said: Any, expected: Any) -> None:
    whole = whole_chunks(orjson.dumps(choice(stop_reason=said)), "chat", choices=1)
    event = stream_chunks(orjson.dumps(delta(finish_reason="stop", stop_reason=said)), "chat", choices=1)
    assert [chunk.stop_reason for chunk in (*whole, *event) if isinstance(chunk, ChoiceEnd)] == [expected, expected]
