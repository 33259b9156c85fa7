"""The families of models by how they write calls: one row each, under vLLM's names of the same parsers.

A row says how calls are read and, for answers that must follow a schema, how they are written. Which row a model has is
seen in its chat template; an operator may name another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from engine.errors import UnsupportedModel
from engine.text.tool_calls import deepseek, harmony, mistral
from engine.text.tool_calls.conversation import USUAL, Habits, habits_of
from engine.text.tool_calls.leading import PYTHON_TAG, LeadingCalls
from engine.text.tool_calls.pieces import AnswerParser
from engine.text.tool_calls.tagged import TaggedCalls
from engine.text.tool_calls.thinking import CLOSING, OPENING


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How one family writes calls: `head`, then each call between `opening` and `closing`, then `tail`.

    With `arguments_key` a call is an object with the name and the arguments; without, the name, `middle` and the
    arguments. Texts may hold marks, which many vocabularies have as single tokens.
    """

    parser: Callable[[Collection[str]], AnswerParser]
    """For the names of the functions that were offered."""
    marks: tuple[str, ...]
    opening: str = ""
    closing: str = ""
    separator: str = ""
    head: str = ""
    tail: str = ""
    arguments_key: str | None = None
    middle: str = ""
    leads: bool = False
    """Calls are also read as bare JSON, or JSON in a fence, at the beginning of an answer."""
    one_call: bool = False
    """The model ends its answer with a call."""


FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(
        lambda names: LeadingCalls(lambda calls: TaggedCalls(first=calls), names),
        marks=("<tool_call>", "</tool_call>"),
        opening="<tool_call>\n",
        closing="\n</tool_call>",
        separator="\n",
        arguments_key="arguments",
        leads=True,
    ),
    "llama3_json": CallFormat(
        lambda names: LeadingCalls(names=names),
        marks=(PYTHON_TAG,),
        separator="; ",
        arguments_key="parameters",
        leads=True,
    ),
    "mistral": CallFormat(
        lambda _: mistral.MistralCalls(),
        marks=(mistral.OPENING, mistral.ARGS, mistral.CALL_ID),
        head=f"{mistral.OPENING}[",
        separator=", ",
        tail="]",
        arguments_key="arguments",
    ),
    "mistral_named": CallFormat(
        lambda _: mistral.MistralCalls(),
        marks=(mistral.OPENING, mistral.ARGS, mistral.CALL_ID),
        opening=mistral.OPENING,
        middle=mistral.ARGS,
    ),
    "deepseek_v3": CallFormat(
        lambda _: deepseek.MarkedCalls(),
        marks=deepseek.MARKS,
        head=deepseek.ALL,
        opening=f"{deepseek.ONE}function{deepseek.SEPARATOR}",
        middle="\n```json\n",
        closing=f"\n```{deepseek.ONE_END}",
        separator="\n",
        tail=deepseek.ALL_END,
    ),
    "deepseek_v31": CallFormat(
        lambda _: deepseek.MarkedCalls(),
        marks=deepseek.MARKS,
        head=deepseek.ALL,
        opening=deepseek.ONE,
        middle=deepseek.SEPARATOR,
        closing=deepseek.ONE_END,
        tail=deepseek.ALL_END,
    ),
    "openai": CallFormat(
        lambda _: harmony.Channels(),
        marks=harmony.MARKS,
        opening=f"{harmony.CHANNEL}commentary to=functions.",
        middle=f" {harmony.CONSTRAIN}json{harmony.MESSAGE}",
        one_call=True,
    ),
}
GENERIC = "hermes"
"""Of a model whose template knows no tools: it is told the format in the system's message."""
_SEEN = (
    (harmony.CHANNEL, "openai"),
    (deepseek.SEPARATOR + "' + tool['function']['name'] + '\\n", "deepseek_v3"),
    (deepseek.ONE + "function", "deepseek_v3"),
    (deepseek.ONE, "deepseek_v31"),
    (mistral.ARGS, "mistral_named"),
    (mistral.OPENING, "mistral"),
    ("<tool_call>", "hermes"),
    (PYTHON_TAG, "llama3_json"),
    ('"parameters": ', "llama3_json"),
)
_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class Dialog:
    """How one model writes an answer besides its text."""

    calls: str
    """The name of its row."""
    takes_tools: bool
    """Its template has a place for tools."""
    thinks: bool
    """It may begin with a block of reasoning."""
    habits: Habits = USUAL
    """Of its template."""

    @property
    def format(self) -> CallFormat:
        return FORMATS[self.calls]


def dialog_of(template: str | None, calls: str | None = None, reasoning: str | None = None) -> Dialog:
    """By the template. `calls` and `reasoning` name a row, or `none`, for a template that tells too little. Raises
    `UnsupportedModel` for a name that is none."""
    source = template or ""
    takes_tools = _TOOLS.search(source) is not None
    seen = next((name for mark, name in _SEEN if mark in source), GENERIC) if takes_tools else GENERIC
    if calls is not None and calls not in FORMATS:
        raise UnsupportedModel(
            f"`{calls}` is no parser of tool calls", hint=f"tool_call_parser is one of {', '.join(FORMATS)}"
        )
    if reasoning not in (None, "none", *REASONING):
        raise UnsupportedModel(
            f"`{reasoning}` is no parser of reasoning", hint=f"reasoning_parser is one of {', '.join(REASONING)}, none"
        )
    thinks = CLOSING in source or OPENING in source if reasoning is None else reasoning != "none"
    return Dialog(calls or seen, takes_tools, thinks, habits_of(source))


REASONING = ("qwen3", "deepseek_r1")
"""vLLM's names of one and the same: a block of `<think>` at the beginning."""
