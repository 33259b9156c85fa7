"""Bodies made to cost more than an answer: every one is refused at a price that does not grow with what is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from gateway.admin.identity.views import NewAccount
from gateway.admin.limits import ResetBody
from gateway.api import chat, completions, embeddings
from gateway.api.bounds import MAX_FIELDS
from gateway.api.http.body import MAX_DEPTH, MAX_VALUES, parse_json
from gateway.api.http.errors import MAX_ERRORS, refusal_of
from gateway.errors import InvalidRequest

LARGEST = 4 * 1024 * 1024
"""Bytes: the default of `http.max_body_bytes`."""
ONE_REFUSAL_S = 0.4
"""CPU seconds of this thread; parsing 4 MiB takes a tenth of it here, and each of these took one to forty seconds."""
CHAT = b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"x"}],'
COMPLETION = b'{"model":"m","prompt":'


def filled(head: bytes, item: bytes, tail: bytes, most: int = MAX_VALUES // 2) -> bytes:
    count = min(most, (LARGEST - len(head) - len(tail)) // (len(item) + 1))
    return head + b",".join([item] * count) + tail


def keys(count: int, value: str) -> bytes:
    return ",".join(f'"k{number}":{value}' for number in range(count)).encode()


WRONG: dict[str, tuple[Callable[[object], object], bytes, str, str | None]] = {
    "choices": (chat.parse, filled(CHAT + b'"guided_choice":[', b"1", b"]}"), "invalid_type", "guided_choice.0"),
    "nested choices": (
        chat.parse,
        filled(CHAT + b'"structured_outputs":{"choice":[', b"1", b"]}}"),
        "invalid_type",
        "structured_outputs.choice.0",
    ),
    "logit_bias": (
        chat.parse,
        CHAT + b'"logit_bias":{' + keys(60_000, '"a"') + b"}}",
        "invalid_value",
        "logit_bias",
    ),
    "metadata": (chat.parse, CHAT + b'"metadata":{' + keys(60_000, "1") + b"}}", "invalid_type", "metadata"),
    "unknown fields": (chat.parse, CHAT + keys(60_000, "1") + b"}", "invalid_value", None),
    "fields of a message": (
        chat.parse,
        b'{"model":"m","messages":[{"role":"user",' + keys(60_000, "1") + b"}]}",
        "invalid_value",
        "messages.0",
    ),
    "bad messages": (chat.parse, filled(b'{"model":"m","messages":[', b"1", b"]}"), "invalid_type", "messages.0"),
    "bad parts": (
        chat.parse,
        filled(b'{"model":"m","messages":[', b'{"role":"user","content":[{},{},{},{},{}]}', b"]}", 8_000),
        "missing_required_parameter",
        "messages.0.content.0.type",
    ),
    "token ids": (chat.parse, filled(CHAT + b'"allowed_token_ids":[', b'"a"', b"]}"), "invalid_type", None),
    "stop": (chat.parse, filled(CHAT + b'"stop":[', b"1", b"]}"), "invalid_type", "stop.0"),
    "prompt": (completions.parse, filled(COMPLETION + b"[", b"true", b"]}"), "invalid_type", "prompt.0"),
    "empty prompts": (completions.parse, filled(COMPLETION + b"[", b'""', b"]}"), "invalid_value", "prompt.0"),
    "inputs": (embeddings.parse, filled(b'{"model":"m","input":[', b"true", b"]}"), "invalid_type", "input.0"),
    "a schema": (
        chat.parse,
        filled(CHAT + b'"guided_json":{"enum":[', b'"a"', b"]}}"),
        "schema_too_complex",
        "guided_json",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_refusal_costs_the_same_however_much_is_wrong(name: str) -> None:
    parse, raw, code, param = WRONG[name]
    assert len(raw) <= LARGEST
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as refusal:
        parse(parse_json(raw))
    assert time.thread_time() - started < ONE_REFUSAL_S
    assert refusal.value.code == code
    if param is not None:
        assert refusal.value.param == param


MANY = {
    "lists": filled(b"[", b"[]", b"]", LARGEST),
    "objects": filled(b"[", b'{"a":1}', b"]", LARGEST),
    "numbers": filled(b"[", b"1", b"]", LARGEST),
    "texts": filled(b"[", b'""', b"]", LARGEST),
    "texts that end in a backslash": filled(b"[", rb'"\\"', b"]", LARGEST),
    "keys": b"{" + keys(MAX_VALUES, "1") + b"}",
}


@pytest.mark.parametrize("raw", MANY.values(), ids=MANY)
def test_more_values_than_a_request_needs_are_refused_before_they_are_parsed(raw: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as refusal:
        parse_json(raw)
    assert refusal.value.code == "too_many_values"
    assert str(MAX_VALUES) in refusal.value.message
    assert time.thread_time() - started < ONE_REFUSAL_S


def test_the_signs_inside_of_a_text_are_no_values() -> None:
    text = '{"a": [1, 2], "b": "\\"", ' * 160_000
    raw = json.dumps({"content": text}).encode()
    assert raw.count(b",") > MAX_VALUES
    assert parse_json(raw) == {"content": text}


def test_a_prompt_of_token_ids_may_be_as_long_as_the_limit() -> None:
    ids = [7] * (MAX_VALUES - 100)
    found = completions.parse(parse_json(json.dumps({"model": "m", "prompt": ids}).encode()))
    assert found.prompts == (tuple(ids),)


@pytest.mark.parametrize("end", [b"", b"\\", b'"', b'"]' + b"]" * 65])
def test_a_text_of_escaped_quotes_is_read_once(end: bytes) -> None:
    """Searching again from every quote would take hours for this one."""
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as refusal:
        parse_json(b"[" * (MAX_DEPTH + 1) + b'"' + b'\\"' * 2_000_000 + end)
    assert refusal.value.code == "json_too_deep"
    assert time.thread_time() - started < ONE_REFUSAL_S


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"[" * 60_000 + b"]" * 60_000, "json_too_deep"),
        (b"[" * 65 + b"]" * 4_000_000, "json_too_deep"),
        (b"[" + b"]" * 4_000_000, "invalid_json"),
        (b"]" * 1_000_000 + b"[" * 60_000, "invalid_json"),
        (b"[]" * 60_000, "invalid_json"),
        (b'{"a":' * 60_000, "json_too_deep"),
    ],
)
def test_the_depth_of_brackets_is_found_without_a_parser(raw: bytes, code: str) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as refusal:
        parse_json(raw)
    assert refusal.value.code == code
    assert time.thread_time() - started < ONE_REFUSAL_S


def test_more_wrong_fields_than_can_be_told_are_told_as_such() -> None:
    class Loose(BaseModel):
        entries: list[int] = Field()

    with pytest.raises(ValidationError) as found:
        Loose.model_validate({"entries": ["x"] * (MAX_ERRORS + 1)})
    error = refusal_of(found.value)
    assert (error.status, error.code) == (400, "invalid_value")
    assert "512" in error.message


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (NewAccount, {"name": "robot", "roles": [1] * 50_000}),
        (NewAccount, {"name": "robot", "roles": [], **{f"k{n}": 1 for n in range(50_000)}}),
        (ResetBody, {"reason": "x", "limits": [1] * 50_000}),
    ],
)
def test_bodies_of_the_admin_api_stop_at_their_first_error_too(schema: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as found:
        schema.model_validate(body)
    assert found.value.error_count() <= 2


def test_an_object_with_too_many_fields_says_how_many_it_may_have() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        chat.parse({"model": "m", "messages": [], **{f"k{n}": 1 for n in range(200)}})
    assert refusal.value.message == f"The body must have at most {MAX_FIELDS} fields."
