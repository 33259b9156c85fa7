"""The body of Anthropic's route: what becomes of each parameter and block, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.anthropic.body import parse
from gateway.errors import InvalidRequest
from gateway.flow.parts import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from gateway.flow.tools import ToolChoice
from gateway.flow.values import ChatRequest, Message
from tests.fakes.agent_body import agent_body

USER: dict[str, Any] = {"role": "user", "content": "Hola"}
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def body(**fields: Any) -> ChatRequest:
    return parse({"model": "m", "max_tokens": 64, "messages": [USER], **fields})


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        body(**fields)
    return caught.value


def turns(*messages: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    return body(messages=list(messages), **fields).messages


def test_every_parameter_reaches_the_sampler() -> None:
    request = body(temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["a", "b"], stream=True)
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (64, 0.5, 0.9, 40)
    assert (params.stop, params.n, request.stream) == (("a", "b"), 1, True)


def test_max_tokens_is_required() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"model": "m", "messages": [USER]})
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "max_tokens")


def test_the_user_id_is_a_label() -> None:
    label = '{"device_id":"' + "0" * 64 + '","account_uuid":"","session_id":"5d2c"}'
    assert body(metadata={"user_id": label}).user_label == label


def test_a_system_prompt_is_one_message_whatever_blocks_it_has() -> None:
    cached = {"type": "text", "text": "Sé breve.", "cache_control": {"type": "ephemeral"}}
    request = body(system=[cached, {"type": "text", "text": "Y amable."}])
    assert request.messages[0] == Message.of_text("system", "Sé breve.\nY amable.")
    assert request.ignored_hints == ("cache_control",)


def test_the_billing_line_of_an_agent_is_not_said_to_the_model() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}]
    for system in (blocks, f"{line}\nYou are an agent."):
        request = body(system=system)
        assert request.messages[0] == Message.of_text("system", "You are an agent.")
        assert request.ignored_hints == ("x-anthropic-billing-header",)


def test_texts_that_follow_each_other_are_one() -> None:
    blocks = [{"type": "text", "text": "Hola"}, {"type": "text", "text": "mundo", "citations": None}]
    assert turns({"role": "user", "content": blocks}) == (Message.of_text("user", "Hola\nmundo"),)


def test_turns_of_one_role_that_follow_each_other_are_one() -> None:
    found = turns(USER, {"role": "user", "content": "¿Y?"}, {"role": "assistant", "content": "Sí"}, USER)
    assert [message.role for message in found] == ["user", "assistant", "user"]
    assert found[0] == Message.of_text("user", "Hola\n¿Y?")


def test_a_tool_round_becomes_calls_and_results() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Málaga"}}
    thought = {"type": "thinking", "thinking": "Miro el tiempo.", "signature": "unsigned"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "21 °C"}]}
    found = turns(
        USER,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Veamos."}, call]},
        {"role": "user", "content": [{"type": "text", "text": "¿Y bien?"}, result]},
        tools=[TOOL],
    )
    assert found[1] == Message(
        "assistant",
        (
            ReasoningPart("Miro el tiempo."),
            TextPart("Veamos."),
            ToolCallPart("toolu_1", "weather", '{"city": "Málaga"}'),
        ),
    )
    assert found[2] == Message("tool", (ToolResultPart("toolu_1", "21 °C"),))
    assert found[3] == Message.of_text("user", "¿Y bien?")


def test_results_of_several_calls_are_a_message_each_and_a_failure_is_said() -> None:
    call = {"type": "tool_use", "name": "weather", "input": {}}
    calls = {"role": "assistant", "content": [{**call, "id": "a"}, {**call, "id": "b"}, {**call, "id": "c"}]}
    failed = {"type": "tool_result", "tool_use_id": "b", "content": "no such city", "is_error": True}
    said = {"type": "tool_result", "tool_use_id": "c", "content": "<tool_use_error>no</tool_use_error>"}
    blocks = [{"type": "tool_result", "tool_use_id": "a"}, failed, said | {"is_error": True}]
    found = turns(USER, calls, {"role": "user", "content": blocks})
    assert [message.content[0] for message in found[2:]] == [
        ToolResultPart("a", ""),
        ToolResultPart("b", "Error: no such city"),
        ToolResultPart("c", "<tool_use_error>no</tool_use_error>"),
    ]


def test_thinking_that_only_its_maker_can_read_is_left_out() -> None:
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Sí"}]
    assert turns(USER, {"role": "assistant", "content": blocks}, USER)[1] == Message.of_text("assistant", "Sí")


@pytest.mark.parametrize("kind", ["image", "server_tool_use", "container_upload", "mcp_tool_use"])
def test_a_block_that_no_model_reads_is_refused_by_name(kind: str) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": kind, "anything": [1]}]}])
    assert (error.code, error.param) == ("unsupported_parameter", "messages.0.content.0")
    assert f"`{kind}`" in error.message


def test_documents_of_plain_text_and_results_of_a_search_are_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "La esclusa se abre."}
    document = {"type": "document", "source": source, "title": "Manual", "citations": {"enabled": True}}
    text = {"type": "text", "text": "Tiene dos puertas."}
    found = {"type": "search_result", "source": "wiki/esclusa", "title": "Esclusa", "content": [text]}
    request = body(messages=[{"role": "user", "content": [document, found]}])
    assert request.messages[0].texts == ("Manual\nLa esclusa se abre.\nEsclusa\nwiki/esclusa\nTiene dos puertas.",)
    assert request.ignored_hints == ("citations",)


def test_a_document_of_another_kind_is_refused_by_name() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    error = refused(messages=[{"role": "user", "content": [{"type": "document", "source": pdf}]}])
    assert (error.code, error.param) == ("unsupported_parameter", "messages.0.content.0")
    assert "`document`" in error.message


def test_an_image_in_a_result_is_refused_too() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    error = refused(messages=[USER, call, {"role": "user", "content": [result]}])
    assert error.code == "unsupported_parameter"


def test_a_result_of_a_call_that_nobody_has_made_is_refused() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": "21"}
    assert refused(messages=[{"role": "user", "content": [result]}]).param == "messages.0.content.0.tool_use_id"


def test_a_url_is_never_fetched() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
    assert refused(messages=[{"role": "user", "content": [image]}]).code == "url_not_allowed"


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("user", {"type": "tool_use", "id": "a", "name": "f", "input": {}}),
        ("assistant", {"type": "tool_result", "tool_use_id": "a", "content": "x"}),
        ("user", {"type": "thinking", "thinking": "x", "signature": "y"}),
    ],
)
def test_a_block_in_a_turn_of_the_wrong_role_is_refused(role: str, block: dict[str, Any]) -> None:
    assert refused(messages=[{"role": role, "content": [block]}]).param == "messages.0.content.0.type"


def test_an_answer_that_is_to_be_continued_is_refused() -> None:
    error = refused(messages=[USER, {"role": "assistant", "content": "{"}])
    assert (error.code, error.param) == ("unsupported_parameter", "messages")


def test_tools_are_functions_with_a_schema() -> None:
    (spec,) = body(tools=[TOOL | {"cache_control": {"type": "ephemeral"}, "type": "custom", "strict": True}]).tools
    assert (spec.name, spec.description, spec.strict) == ("weather", "The weather of a city", True)
    assert spec.parameters == TOOL["input_schema"]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "weather"}, ToolChoice("named", "weather"), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_the_choice_of_a_tool(choice: Any, expected: ToolChoice, parallel: bool) -> None:
    request = body(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_hints_are_accepted_and_told() -> None:
    request = body(
        thinking={"type": "enabled", "budget_tokens": 1024},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        speed="fast",
        service_tier="auto",
        container=None,
        mcp_servers=[],
    )
    assert set(request.ignored_hints) == {"context_management", "output_config.effort", "speed", "thinking"}


@pytest.mark.parametrize("name", ["container", "mcp_servers", "inference_geo", "user_profile_id", "chat_template"])
def test_a_parameter_that_is_not_served_is_refused_by_name(name: str) -> None:
    error = refused(**{name: ["x"]})
    assert (error.code, error.param) == ("unsupported_parameter", name)


def test_a_conversation_that_the_server_is_to_hold_is_refused_with_the_code_that_sdks_go_on_at() -> None:
    assert refused(thread={"type": "create"}).code == "thread_unsupported_request"


def test_a_schema_for_the_answer_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    params = body(output_config={"format": {"type": "json_schema", "schema": schema}}).params
    assert params.grammar == {"type": "json_schema", "value": schema, "strict": True}
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"items": deep}
    error = refused(output_config={"format": {"type": "json_schema", "schema": deep}})
    assert (error.code, error.param) == ("schema_too_complex", "output_config.format.schema")


def test_a_key_that_the_caller_invented_is_never_told_back() -> None:
    secret = "s" * 2000
    error = refused(tools=[{**TOOL, "input_schema": {secret: 1}}])
    assert "sss" not in f"{error.message}{error.param}"


def test_the_body_of_an_agent_is_understood() -> None:
    request = parse(agent_body("m"))
    assert (len(request.tools), request.params.max_tokens, request.stream) == (121, 32000, True)
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[2].content == (ToolCallPart("toolu_01", "Tool1", '{"p": "ls"}'),)
    assert request.messages[0].texts[0].startswith("You are")
