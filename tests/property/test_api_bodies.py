"""Whatever arrives as a body is either a request or a 400 of ours: never another exception, never an echo."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import chat, completions, embeddings
from gateway.api.anthropic import body, count_tokens
from gateway.api.anthropic.body import MessagesBody
from gateway.api.chat import ChatBody
from gateway.api.http.body import parse_json
from gateway.errors import GatewayError
from gateway.flow.values import ChatRequest

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*ChatBody.model_fields, *MessagesBody.model_fields})
NAMES = st.sampled_from([*FIELDS, "prompt", "input", "tools", "content", "role", "type", "text"])
BODIES = st.dictionaries(NAMES, VALUES, max_size=8)
SECRET = "palabra-secreta"


def outcome(parse: Callable[[Any], Any], value: Any) -> Any:
    """The result, or the refusal; any other exception fails the test."""
    try:
        return parse(value)
    except GatewayError as error:
        return error


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_json_or_refused(raw: bytes) -> None:
    found = outcome(parse_json, raw)
    assert not isinstance(found, GatewayError) or found.status == 400


@given(VALUES)
def test_what_python_writes_as_json_is_read_back_or_refused_for_its_numbers(value: Any) -> None:
    found = outcome(parse_json, json.dumps(value, allow_nan=True).encode())
    if isinstance(found, GatewayError):
        assert found.code in {"number_out_of_range", "invalid_json", "invalid_unicode"}
    else:
        assert found == value


@given(BODIES)
@settings(max_examples=300)
def test_any_object_is_a_request_or_a_400(sent: dict[str, Any]) -> None:
    for parse in (chat.parse, completions.parse, embeddings.parse, body.parse, count_tokens.parse):
        found = outcome(parse, sent)
        assert isinstance(found, ChatRequest) or found.status == 400


@given(
    st.sampled_from(FIELDS),
    st.sampled_from([SECRET, [SECRET], {SECRET: SECRET}, {"type": SECRET}]),
)
def test_a_refusal_never_repeats_a_value(name: str, value: Any) -> None:
    sent = {"model": "mini", "messages": [{"role": "user", "content": "x"}], name: value}
    for parse in (chat.parse, body.parse):
        found = outcome(parse, sent)
        if isinstance(found, GatewayError):
            assert SECRET not in f"{found.message} {found.hint} {found.param}"
