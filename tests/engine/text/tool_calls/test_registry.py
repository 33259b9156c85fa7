"""Which family's form a model has, seen in its template or named by an operator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.errors import UnsupportedModel
from engine.text.tool_calls.registry import FORMATS, dialog_of

TOOLS = "{% if tools %}{{ tools|tojson }}{% endif %}"
DOCS = Path(__file__).parents[4] / "docs" / "concepts" / "models.md"


@pytest.mark.parametrize(
    ("template", "calls"),
    [
        (TOOLS + "<tool_call>", "hermes"),
        (TOOLS + "{{ '\"parameters\": ' }}", "llama3_json"),
        (TOOLS + "<|python_tag|>", "llama3_json"),
        (TOOLS + "[TOOL_CALLS] [", "mistral"),
        (TOOLS + "[TOOL_CALLS]{{ name }}[ARGS]", "mistral_named"),
        (TOOLS + "'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n'", "deepseek_v3"),
        (TOOLS + "'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
        (TOOLS + "<|channel|>commentary", "openai"),
        (TOOLS, "hermes"),
        ("{{ message.tool_calls }}[TOOL_CALLS]", "hermes"),
        (None, "hermes"),
    ],
)  # fmt: skip
def test_a_template_tells_how_its_model_calls(template: str | None, calls: str) -> None:
    dialog = dialog_of(template)
    assert dialog.calls == calls
    assert dialog.takes_tools == (template is not None and "tools|" in template)
    assert not dialog.thinks


def test_a_template_that_mentions_the_block_is_of_a_model_that_thinks() -> None:
    assert dialog_of("{{ '<think>\\n' }}").thinks
    assert dialog_of("{{ content.split('</think>')[-1] }}").thinks
    assert not dialog_of("{{ '<think>' }}", reasoning="none").thinks
    assert dialog_of("", reasoning="deepseek_r1").thinks


@pytest.mark.parametrize("calls", FORMATS)
def test_an_operator_names_another_row(calls: str) -> None:
    assert dialog_of(TOOLS + "<tool_call>", calls).calls == calls


def test_a_name_that_is_no_row_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnsupportedModel) as refused:
        dialog_of("", "pythonic")
    assert all(name in str(refused.value.hint) for name in FORMATS)
    with pytest.raises(UnsupportedModel, match="`granite` is no parser of reasoning"):
        dialog_of("", reasoning="granite")


def test_every_row_is_documented() -> None:
    section = DOCS.read_text().split("## Tool calls and reasoning")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == ["tool_call_parser", *FORMATS]
