"""Anthropic's turns become the messages that every chat has. Pure.

Results of tools, which stand in a user's turn there, become messages of their own, before what the user says with them.
Turns of one role that follow each other are one, as Anthropic reads them: many chat templates want them alternating.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from gateway.api.anthropic.blocks import (
    AnyBlock,
    DocumentBlock,
    OtherBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from gateway.api.anthropic.documents import read_text
from gateway.errors import InvalidRequest
from gateway.flow.parts import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from gateway.flow.request import Role
from gateway.flow.values import Message

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""A line for Anthropic's accounts that Claude Code puts first: another one in each request, so that no prompt would be
found in the prefix cache, and not said to the model."""


def messages_of(system: str | Sequence[TextBlock] | None, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Raises `InvalidRequest` for a block that no model here reads, or that stands in a turn of the wrong role."""
    said, calls = list[tuple[Role, list[Part]]](), set[str]()
    if system is not None:
        blocks = [system] if isinstance(system, str) else [block.text for block in system]
        texts = [stripped for block in blocks if (stripped := without_billing(block))]
        if texts:
            said.append(("system", [TextPart(text) for text in texts]))
    for index, turn in enumerate(turns):
        for role, parts in _said(turn, calls, f"messages.{index}.content"):
            if said and said[-1][0] == role != "tool":
                said[-1][1].extend(parts)
            else:
                said.append((role, parts))
    if said and said[-1][0] == "assistant":
        raise InvalidRequest(
            "The last turn is the assistant's, and no model here continues it.",
            code="unsupported_parameter",
            param="messages",
            hint="end with a turn of the user; say in `system` how the answer is to begin, or give a schema in "
            "`output_config.format`",
        )
    return tuple([Message(role, _joined(parts)) for role, parts in said])


def without_billing(text: str) -> str:
    return _BILLING.sub("", text)


def block_hints(system: str | Sequence[TextBlock] | None, turns: Iterable[Turn]) -> frozenset[str]:
    """The names of what blocks ask for and nobody follows."""
    blocks = [] if system is None or isinstance(system, str) else list[AnyBlock](system)
    blocks += [block for turn in turns if not isinstance(turn.content, str) for block in turn.content]
    found = {"cache_control"} if any(getattr(block, "cache_control", None) is not None for block in blocks) else set()
    cited = (block.citations for block in blocks if isinstance(block, DocumentBlock | SearchResultBlock))
    return frozenset(found | ({"citations"} if any(one and one.get("enabled") for one in cited) else set()))


def _said(turn: Turn, calls: set[str], param: str) -> list[tuple[Role, list[Part]]]:
    """The messages of a turn. `calls`: the ids of those made so far."""
    if isinstance(turn.content, str):
        return [(turn.role, [TextPart(turn.content)])]
    results, parts = list[tuple[Role, list[Part]]](), list[Part]()
    for index, block in enumerate(turn.content):
        where = f"{param}.{index}"
        match block:
            case TextBlock(text=text):
                parts.append(TextPart(text))
            case ToolResultBlock() if turn.role == "user":
                _require_made(block, calls, where)
                results.append(("tool", [ToolResultPart(block.tool_use_id, _result(block, where))]))
            case ToolUseBlock() if turn.role == "assistant":
                calls.add(block.id)
                parts.append(ToolCallPart(block.id, block.name, json.dumps(block.input, ensure_ascii=False)))
            case ThinkingBlock(thinking=text) if turn.role == "assistant":
                if text:
                    parts.append(ReasoningPart(text))
            case RedactedThinkingBlock() if turn.role == "assistant":
                pass
            case DocumentBlock() | SearchResultBlock() | OtherBlock() if turn.role == "user":
                parts.append(TextPart(read_text(block, where)))
            case _:
                raise InvalidRequest(
                    f"A block of type `{block.type}` cannot stand in a turn of the role `{turn.role}`.",
                    code="invalid_value",
                    param=f"{where}.type",
                )
    return results if results and not parts else [*results, (turn.role, parts)]


def _require_made(block: ToolResultBlock, calls: set[str], param: str) -> None:
    if block.tool_use_id not in calls:
        raise InvalidRequest(
            "A `tool_result` answers a call that no earlier turn has made.",
            code="invalid_value",
            param=f"{param}.tool_use_id",
            hint="send the assistant's turn with its `tool_use` before it",
        )


def _result(block: ToolResultBlock, param: str) -> str:
    """The text of a result. Models are told of a failure in words: no chat template has a mark for it."""
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        text = "\n".join([read_text(part, f"{param}.content.{index}") for index, part in enumerate(block.content)])
    return f"Error: {text}" if block.is_error and "error" not in text[:32].lower() else text


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Texts that follow each other are one; at least one part."""
    joined, texts = list[Part](), list[str]()
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
            continue
        if texts:
            joined.append(TextPart("\n".join(texts)))
            texts = []
        joined.append(part)
    if texts:
        joined.append(TextPart("\n".join(texts)))
    return tuple(joined) or (TextPart(""),)
