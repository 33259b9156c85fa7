"""Tools of a chat: a model reads them as text, so they are counted, inspected and committed to."""

from __future__ import annotations

from dataclasses import replace

from gateway.flow.budget import prompt_digest, rough_prompt_tokens
from gateway.flow.parts import TextPart
from gateway.flow.tools import ToolChoice, ToolSpec
from gateway.flow.values import ChatRequest, Message

SCHEMA = {"type": "object", "properties": {"ciudad": {"type": "string", "description": "España"}}}
TOOL = ToolSpec("clima", "El tiempo que hace", SCHEMA)
PLAIN = ChatRequest("mini", (Message.of_text("user", "Hola"),))


def test_a_model_reads_name_description_and_schema_of_a_tool() -> None:
    assert replace(PLAIN, tools=(TOOL,)).texts == (
        "Hola",
        "clima",
        "El tiempo que hace",
        '{"type": "object", "properties": {"ciudad": {"type": "string", "description": "España"}}}',
    )
    assert ToolSpec("reloj").texts == ("reloj", "", "")


def test_tools_count_for_the_estimate() -> None:
    assert rough_prompt_tokens(replace(PLAIN, tools=(TOOL,))) > rough_prompt_tokens(PLAIN) + 30


def test_the_digest_tells_tools_and_messages_apart() -> None:
    other = ToolSpec("clima", "El tiempo que hace", {})
    parts = (TextPart("clima"), TextPart(""), TextPart(""))
    requests = [
        PLAIN,
        replace(PLAIN, tools=(TOOL,)),
        replace(PLAIN, tools=(other,)),
        replace(PLAIN, tools=(TOOL, other)),
        replace(PLAIN, tools=(ToolSpec("clima"),)),
        replace(PLAIN, messages=(*PLAIN.messages, Message("tool", parts))),
    ]
    assert len({prompt_digest(request) for request in requests}) == len(requests)


def test_what_only_steers_the_answer_is_no_part_of_the_digest() -> None:
    asked = replace(PLAIN, tools=(TOOL,))
    assert prompt_digest(replace(asked, tool_choice=ToolChoice("required"))) == prompt_digest(asked)
