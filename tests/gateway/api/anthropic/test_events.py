"""The events of a streamed message: their order, their bytes, and that they make the message that a whole answer is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.anthropic.events import PING, MessageEvents, broken_off
from gateway.api.anthropic.message import message_object
from gateway.api.render import ChoiceBuffer, collect
from gateway.errors import Unavailable
from gateway.flow.answer import Bill
from gateway.flow.stages import Reserved
from gateway.flow.values import (
    ChatRequest,
    ChoiceEnd,
    Chunk,
    Estimate,
    GenerationParams,
    Obligations,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from tests.fakes.exchanges import admitted

BILL = Bill(Usage(26, 12, 16), 9)
END = ChoiceEnd(TextDelta(), "stop")
CALL: list[Chunk] = [
    ToolCallDelta(call=0, call_id="call_1", name="weather"),
    ToolCallDelta(text='{"city": ', call=0),
    ToolCallDelta(text='"Málaga"}', call=0),
]
CALLED = ChoiceEnd(TextDelta(), "tool_calls")


def streamed(chunks: Sequence[Chunk], reserved: Reserved | None = None) -> bytes:
    events = MessageEvents(reserved or admitted())
    return b"".join([events.begin(), *map(events.take, chunks), events.end(BILL)])


def read(data: bytes) -> list[dict[str, Any]]:
    """The events, each with an `event:` line that repeats its type."""
    found = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        first, second = frame.split("\n")
        value = json.loads(second.removeprefix("data: "))
        assert first == f"event: {value['type']}"
        found.append(value)
    return found


def types(chunks: Sequence[Chunk]) -> list[str]:
    return [event["type"] for event in read(streamed(chunks))]


def whole(chunks: Sequence[Chunk], reserved: Reserved | None = None) -> dict[str, Any]:
    choice, end = ChoiceBuffer(), None
    for chunk in chunks:
        collect([choice], chunk)
        end = chunk if isinstance(chunk, ChoiceEnd) else end
    return message_object(reserved or admitted(), BILL, choice, end)


def test_a_text_has_anthropics_order() -> None:
    assert types([TextDelta(text="Ho"), TextDelta(text="la"), END]) == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_every_byte_of_a_short_answer() -> None:
    reserved = admitted()
    request_id, number = reserved.request_id.hex, str(reserved.request_id)
    assert streamed([TextDelta(text="¡Sí!"), END], reserved).decode() == (
        "event: message_start\n"
        f'data: {{"type":"message_start","message":{{"id":"msg_{request_id}","type":"message","role":"assistant",'
        '"model":"smollm2-135m-instruct","content":[],"stop_reason":null,"stop_sequence":null,'
        '"usage":{"input_tokens":26,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
        "event: content_block_start\n"
        'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        'event: ping\ndata: {"type":"ping"}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"¡Sí!"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        "event: message_delta\n"
        'data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        '"usage":{"input_tokens":10,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"output_tokens":12},'
        f'"x_esclusa":{{"request_id":"{number}","route":"small","policy_version":3,"cost_micro":9}}}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_call_is_a_block_of_its_own_whose_input_grows() -> None:
    events = read(streamed([TextDelta(text="Veamos."), *CALL, CALLED]))
    started = [event for event in events if event["type"] == "content_block_start"]
    assert started[1] == {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
    }
    grown = [event["delta"] for event in events if event["type"] == "content_block_delta" and event["index"] == 1]
    assert {delta["type"] for delta in grown} == {"input_json_delta"}
    assert json.loads("".join(delta["partial_json"] for delta in grown)) == {"city": "Málaga"}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_call_without_arguments_is_a_block_without_growth() -> None:
    assert types([ToolCallDelta(call_id="call_1", name="now"), CALLED])[1:4] == [
        "content_block_start",
        "ping",
        "content_block_stop",
    ]


def test_two_calls_are_two_blocks() -> None:
    second: list[Chunk] = [ToolCallDelta(text="{}", call=1, call_id="call_2", name="time")]
    events = read(streamed([*CALL, *second, CALLED]))
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]


def test_thinking_ends_with_a_signature() -> None:
    events = read(streamed([ReasoningDelta(text="Mmm"), TextDelta(text="Sí"), END]))
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta"]
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "text"]


def test_the_last_text_may_come_with_the_end() -> None:
    events = read(streamed([ChoiceEnd(TextDelta(text="Sí"), "length")]))
    assert events[3]["delta"] == {"type": "text_delta", "text": "Sí"}
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_an_answer_without_text_has_no_block() -> None:
    assert types([TextDelta(), END]) == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (END, ("end_turn", None)),
        (ChoiceEnd(TextDelta(), "length"), ("max_tokens", None)),
        (ChoiceEnd(TextDelta(), "length", "budget"), ("max_tokens", None)),
        (CALLED, ("tool_use", None)),
        (ChoiceEnd(TextDelta(), "content_filter", "guardrails"), ("refusal", None)),
        (ChoiceEnd(TextDelta(), "stop", stop_reason="FIN"), ("stop_sequence", "FIN")),
        (ChoiceEnd(TextDelta(), "stop", stop_reason="nobody asked for it"), ("end_turn", None)),
        (ChoiceEnd(TextDelta(), "stop", stop_reason=2), ("end_turn", None)),
    ],
)
def test_the_reason_of_the_end(end: ChoiceEnd, expected: tuple[str, str | None]) -> None:
    reserved = admitted(request=ChatRequest("m", params=GenerationParams(stop=("FIN",))))
    delta = read(streamed([TextDelta(text="x"), end], reserved))[-2]["delta"]
    message = whole([TextDelta(text="x"), end], reserved)
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_a_refusal_of_the_model_is_text_and_a_reason() -> None:
    chunks: list[Chunk] = [RefusalDelta(text="No."), END]
    events, message = read(streamed(chunks)), whole(chunks)
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    assert events[-2]["delta"]["stop_reason"] == message["stop_reason"] == "refusal"
    assert message["content"] == [{"type": "text", "text": "No."}]


@pytest.mark.parametrize(
    "chunks",
    [
        [TextDelta(text="Hola"), END],
        [TextDelta(), END],
        [ReasoningDelta(text="Mm"), ReasoningDelta(text="m"), TextDelta(text="Veamos. "), *CALL, CALLED],
        [*CALL, ToolCallDelta(text="{}", call=1, call_id="call_2", name="time"), CALLED],
        [RefusalDelta(text="No."), END],
    ],
)
def test_a_stream_makes_the_same_message_as_a_whole_answer(chunks: list[Chunk]) -> None:
    reserved = admitted()
    message: dict[str, Any] = {}
    for event in read(streamed(chunks, reserved)):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] += delta[name]
                block["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                block = message["content"][event["index"]]
                written = block.pop("json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(written)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"], "x_esclusa": event["x_esclusa"]}
    assert message == whole(chunks, reserved)


@pytest.mark.parametrize(("written", "shown"), [("", {}), ('{"a": 1}', {"a": 1}), ('{"a": ', None), ("[1]", None)])
def test_arguments_that_are_no_object_are_kept_as_written(written: str, shown: dict[str, Any] | None) -> None:
    call: list[Chunk] = [
        ToolCallDelta(call_id="c", name="f"),
        ToolCallDelta(text=written),
        ChoiceEnd(TextDelta(), "length"),
    ]
    expected = {"unparsed_arguments": written} if shown is None else shown
    assert whole(call)["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": expected}]


def test_cached_tokens_are_counted_beside_the_others_and_hidden_where_policy_hides_them() -> None:
    reserved = admitted()
    hiding = replace(reserved, decision=replace(reserved.decision, obligations=Obligations(cached_tokens="hide")))
    shown, hidden = whole([END])["usage"], whole([END], hiding)["usage"]
    assert (shown["input_tokens"], shown["cache_read_input_tokens"]) == (10, 16)
    assert (hidden["input_tokens"], hidden["cache_read_input_tokens"]) == (26, None)


def test_a_prompt_that_was_not_counted_is_told_at_the_end_alone() -> None:
    reserved = admitted(estimate=Estimate(90, 64, exact=False))
    events = read(streamed([END], reserved))
    assert events[0]["message"]["usage"]["input_tokens"] == 0
    assert events[-2]["usage"]["input_tokens"] == 10


def test_a_stream_that_breaks_off_ends_in_an_error() -> None:
    error = Unavailable("The engine has stopped.", code="engine_unavailable", hint="try again")
    assert broken_off(error, "r-1").decode() == (
        'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"The engine has stopped.",'
        '"code":"engine_unavailable","hint":"try again","details":{"error_code":"engine_unavailable"}},'
        '"request_id":"r-1"}\n\n'
    )
