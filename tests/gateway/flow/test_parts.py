"""Parts of messages: one row a kind, and every reader of a request walks them by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from gateway.audit.content import prompt_document
from gateway.backends.openai_wire import request_body
from gateway.errors import InvalidRequest
from gateway.flow.budget import prompt_digest, rough_prompt_tokens
from gateway.flow.parts import (
    KINDS,
    FilePart,
    ImagePart,
    Part,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    message_fields,
    rewritten,
    texts_of,
)
from gateway.flow.values import ChatRequest, CompletionRequest, EmbeddingRequest, Message, ModelCard, Obligations
from gateway.guardrails.actions import actions_of
from gateway.guardrails.prompts import Prompts

NIF = "36796476H"
CARD = ModelCard("mini", backend="upstream")
OTHERS: list[tuple[Part, Part]] = [
    (TextPart(f"DNI {NIF}"), TextPart("DNI [ES_NIF]")),
    (FilePart(f"{NIF}.pdf", "application/pdf", b"%PDF"), FilePart("[ES_NIF].pdf", "application/pdf", b"%PDF")),
    (ToolResultPart("call-1", f"titular {NIF}"), ToolResultPart("call-1", "titular [ES_NIF]")),
    (ReasoningPart(f"es {NIF}"), ReasoningPart("es [ES_NIF]")),
    (ToolCallPart("call-1", "find", f'{{"nif":"{NIF}"}}'), ToolCallPart("call-1", "find", '{"nif":"[ES_NIF]"}')),
    (RefusalPart(f"no doy {NIF}"), RefusalPart("no doy [ES_NIF]")),
]
IMAGE = ImagePart("image/png", b"\x89PNG")


def chat(*turns: tuple[Any, ...]) -> ChatRequest:
    return ChatRequest("mini", tuple(Message.of_text(*turn) for turn in turns))


def of(*parts: Part) -> ChatRequest:
    return ChatRequest("mini", (Message("user", (TextPart("mira"), *parts)),))


@pytest.mark.parametrize(
    ("request_", "digest"),
    [
        (chat(("user", "Hola")), "5d667398a050e0df6654491176edaba39367a855024e6b06e18223aa813a6ba4"),
        (
            chat(
                ("system", "Eres útil."), ("user", "¿Qué hora es? 🕐"), ("assistant", ""), ("user", "uno\ndos\x1e\x1f3")
            ),
            "b4722fd8bf4f86fa767c7ddf077c345d79d03a5f2a3860349ea93d8d232a03eb",
        ),
        (
            chat(("developer", "x", "ana"), ("tool", "{}")),
            "5bf9feabb65ada8fbf729a26ff456887eebf24f42fbbd1f60e07e7e140fca28d",
        ),
        (
            CompletionRequest("mini", prompts=("Érase una vez",)),
            "d382d020e6e6d1c56c7089a430c71a8e7b008a0cb35d0b8bf03aeae3a8d0d914",
        ),
        (
            CompletionRequest("mini", prompts=((1, 2, 3),)),
            "dfd5726d86ed2c8b202855bbea88990ec37a26ab1d2217b55a61b4b6719ff6fd",
        ),
        (
            CompletionRequest("mini", prompts=((7,),)),
            "24a6ade6d35f1e5ecc7a2982ec631d0848f6d1a5bd903c1be2c04491e4cc224c",
        ),
        (
            EmbeddingRequest("mini", inputs=("uno", "", "dos")),
            "0313333ee55f7c593774ec93d67c2c2ac78f7e4abb6c594c7ce361d552e15856",
        ),
    ],
)
def test_digests_on_record_stay_comparable(request_: ChatRequest, digest: str) -> None:
    """Fixed values: a commitment in the audit trail is compared with a digest that is computed years later."""
    assert prompt_digest(request_).hex() == digest


def test_every_kind_of_part_has_its_row() -> None:
    assert set(KINDS) == set(get_args(Part))
    assert len({kind.name for kind in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize(("part", "redacted"), OTHERS)
def test_what_a_model_reads_of_a_part_is_inspected_and_rewritten(part: Part, redacted: Part) -> None:
    actions = actions_of(Obligations(redaction="redact"))
    assert actions is not None
    seen = Prompts(actions, lambda: None).inspect(of(part))
    assert [(found.category, found.where) for found in seen.findings] == [("es_nif", "user")]
    assert seen.request == of(redacted)


@pytest.mark.parametrize(("part", "redacted"), OTHERS)
def test_what_a_model_reads_of_a_part_is_counted_stored_and_sent_to_the_upstream(part: Part, redacted: Part) -> None:
    request = of(part)
    assert rough_prompt_tokens(request) > rough_prompt_tokens(of())
    for written in (str(prompt_document(request)), request_body(request, CARD, 9).decode()):
        assert NIF in written
        assert "mira" in written


def test_every_part_counts_for_the_digest() -> None:
    parts = [part for pair in OTHERS for part in pair]
    parts += [IMAGE, replace(IMAGE, data=b"other"), replace(IMAGE, media_type="image/gif")]
    parts += [ToolResultPart("call-2", f"titular {NIF}"), FilePart(f"{NIF}.pdf", "application/pdf", b"other")]
    assert len({prompt_digest(of(part)) for part in parts}) == len(parts)


def test_a_digest_tells_where_one_part_ends() -> None:
    assert prompt_digest(of(TextPart("ab"))) != prompt_digest(of(TextPart("a"), TextPart("b")))
    assert prompt_digest(of(TextPart("1\x1fa"))) != prompt_digest(of(TextPart("a")))


def test_a_number_cut_over_two_parts_is_found() -> None:
    actions = actions_of(Obligations(redaction="redact"))
    assert actions is not None
    seen = Prompts(actions, lambda: None).inspect(of(TextPart("es 3679"), ReasoningPart("6476H")))
    assert seen.request is not None
    assert "6476H" not in str(seen.request.messages)


def test_parts_that_nobody_changes_are_the_same_value() -> None:
    content = (TextPart("uno"), IMAGE, ReasoningPart("dos"))
    assert rewritten(content, lambda text: text) is content
    assert texts_of(content) == ("uno", "dos")
    assert texts_of(rewritten(content, str.upper)) == ("UNO", "DOS")


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ((TextPart("hola"),), {"content": "hola"}),
        ((TextPart("hola"), ReasoningPart("saluda")), {"content": "hola", "reasoning_content": "saluda"}),
        (
            (TextPart("mira"), IMAGE),
            {
                "content": [
                    {"type": "text", "text": "mira"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                ]
            },
        ),
        (
            (ToolCallPart("a", "add", "{}"), ToolCallPart("b", "sub", "{}")),
            {
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                    {"id": "b", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
                ],
            },
        ),
        ((ToolResultPart("a", "3"),), {"content": "3", "tool_call_id": "a"}),
        ((RefusalPart("no"),), {"content": None, "refusal": "no"}),
        (
            (FilePart("a.pdf", "application/pdf", b"x"),),
            {
                "content": [
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,eA=="}}
                ]
            },
        ),
    ],
)
def test_parts_stand_in_a_message_as_openai_names_them(content: tuple[Part, ...], fields: dict[str, Any]) -> None:
    assert message_fields(content) == fields


@pytest.mark.parametrize("part", [IMAGE, FilePart("a", "text/plain", b"secret")])
def test_bytes_are_not_shown_in_a_log(part: Part) -> None:
    assert "PNG" not in repr(part)
    assert "secret" not in repr(part)


def test_the_api_serves_text_alone() -> None:
    from gateway.api.chat import parse

    body = {"model": "mini", "messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}
    with pytest.raises(InvalidRequest, match="No model here takes"):
        parse(body)
