"""Histories with calls, as OpenAI's clients send them, told to templates that expect them in forms of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidInput
from engine.text.tokenizer import ChatTokenizer
from engine.text.vocabulary import Vocabulary
from tests.engine.text.tool_calls.test_constraint import tokenizer_of

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clima", "parameters": {"type": "object"}}}
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
LLAMA = (
    "{% if tools %}tools {% endif %}{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls|length > 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "call {{ m.tool_calls[0].function.arguments|tojson }}\n{% else %}{{ m.role }} {{ m.content }}\n"
    "{% endif %}{% endfor %}"
)
MISTRAL = (
    "{% if tools %}[TOOL_CALLS]{% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.id }} {% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ m.tool_call_id }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{% if tools %}tools {% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ '>' + c['function']['arguments'] + '<' }}{{ c.function.arguments }}"
    "{{ c.function.arguments.items()|list|length }}"
    "{% endfor %}{% endfor %}"
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)
HARMONY = (
    "{% if tools %}tools {% endif %}{% for message in messages %}{{ message.role }} {{ message.thinking }} {% endfor %}"
)
ARGUMENTS = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
    "{% endfor %}"
)


def told(template: str, messages: list[dict[str, Any]], tools: tuple[dict[str, Any], ...] = (TOOL,)) -> str:
    plain = tokenizer_of("hermes", with_marks=False)
    backend = plain._tokenizer
    tokenizer = ChatTokenizer(
        Vocabulary(backend, True, frozenset({256}), None, frozenset({256}), template), backend.get_vocab_size()
    )
    try:
        return tokenizer.decode(tokenizer.apply_chat_template(messages, tools=tools))
    finally:
        assert tokenizer._template is not None
        tokenizer._template.close()


def call(number: int, arguments: str = '{"n": 1}') -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "clima", "arguments": arguments}}


def result(number: int, text: str = "sol") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


ASKED: dict[str, Any] = {"role": "user", "content": "¿Qué tiempo hace?"}
HISTORY: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call(1)]}, result(1)]
SEVERAL: list[dict[str, Any]] = [
    ASKED,
    {"role": "assistant", "content": "Miro.", "tool_calls": [call(1, '{"a": 1}'), call(2, '{"b": 2}')]},
    result(2, "dos"),
    result(1, "uno"),
]


def test_a_model_of_one_call_at_a_time_is_told_several_one_after_the_other() -> None:
    assert told(LLAMA, SEVERAL).splitlines() == [
        "tools user ¿Qué tiempo hace?",
        'call {"b": 2}',
        "tool dos",
        'call {"a": 1}',
        "tool uno",
    ]


def test_calls_without_results_are_told_too() -> None:
    assert told(LLAMA, SEVERAL[:2]).splitlines()[1:] == ['call {"a": 1}', 'call {"b": 2}']
    assert told(LLAMA, [*SEVERAL[:3], ASKED]).splitlines()[1:4] == ['call {"b": 2}', "tool dos", 'call {"a": 1}']


def test_ids_have_the_length_that_the_template_demands_and_stay_pairs() -> None:
    written = told(MISTRAL, SEVERAL).removeprefix("[TOOL_CALLS]")
    first, second, results = written.split(" ")
    assert {len(first), len(second)} == {9}
    assert first != second
    assert results == second + first
    assert told(MISTRAL, [ASKED, {**result(1), "tool_call_id": "abcDEF123"}]).endswith("abcDEF123")


def test_arguments_are_an_object_and_a_text_to_templates_that_expect_one() -> None:
    assert told(DEEPSEEK, HISTORY) == 'tools >{"n": 1}<{"n": 1}1'


@pytest.mark.parametrize("arguments", ["no es JSON", "[1]", '{"a": ' * 400 + "1" + "}" * 400, '{"a": [[' * 3000])
def test_arguments_that_are_no_usable_object_stay_the_text_that_they_are(arguments: str) -> None:
    history: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call(1, arguments)]}]
    assert told(ARGUMENTS, history).endswith(arguments)


def test_a_template_without_tools_is_told_them_in_words() -> None:
    system, user, assistant, results = told(PLAIN, SEVERAL).split("\n[")
    assert json.dumps(TOOL) in system
    assert user == "user] ¿Qué tiempo hace?"
    assert assistant == (
        'assistant] Miro.\n<tool_call>\n{"name": "clima", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clima", "arguments": {"b": 2}}\n</tool_call>'
    )
    assert results.count("<tool_response>") == 2


def test_tools_go_behind_what_the_system_says() -> None:
    written = told(PLAIN, [{"role": "system", "content": "Sé breve."}, ASKED])
    assert written.startswith("[system] Sé breve.\n\n# Tools")


def test_a_template_without_a_systems_message_is_told_the_tools_by_the_user() -> None:
    written = told(GEMMA, SEVERAL)
    assert written.startswith("[user] # Tools")
    assert [line.split("]")[0] for line in written.splitlines() if line.startswith("[")] == [
        "[user",
        "[assistant",
        "[user",
    ]


def test_a_systems_message_of_the_caller_is_refused_as_without_tools() -> None:
    with pytest.raises(InvalidInput, match="System role not supported"):
        told(GEMMA, [{"role": "system", "content": "Sé breve."}, ASKED])


def test_several_texts_are_one() -> None:
    parts = [{"type": "text", "text": "uno"}, {"type": "text", "text": "dos"}]
    for template in (PLAIN, "{% if tools %}{% endif %}" + PLAIN):
        assert told(template, [{"role": "user", "content": parts}], ()) == "[user] uno\ndos\n"


def test_reasoning_has_the_name_that_the_template_gives_it() -> None:
    thought: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Pienso.",
        "tool_calls": [call(1)],
    }
    assert told(HARMONY, [ASKED, thought]).endswith("assistant Pienso. ")
