"""The parts of a message or an answer, and the one walk over them. Frozen, standard library only.

A kind of part is a class and a row of `KINDS`: which of it a model reads as text, which bytes it carries, and how it
stands in a message on OpenAI's wire. Digest, guardrails, audit, estimate, router, upstream and chat templates walk the
parts by these rows only. Images and files are refused by the API: no model here takes them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FilePart:
    name: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    call_id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class RefusalPart:
    text: str


Part: TypeAlias = TextPart | ImagePart | FilePart | ToolResultPart | ReasoningPart | ToolCallPart | RefusalPart
Content: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PartKind:
    """The row of one kind of part."""

    name: str
    texts: tuple[str, ...]
    """The fields that a model reads as text: what is counted, inspected, rewritten and stored."""
    identity: tuple[str, ...] = ()
    """The other fields of text that tell this part from another, for the digest."""
    data: str | None = None
    """The field with bytes."""
    wire: Callable[[Any], Mapping[str, Any]] = dict
    """What the part adds to a message of OpenAI's chat API; lists of several parts are joined."""


KINDS: Mapping[type[Any], PartKind] = {
    TextPart: PartKind(
        "text",
        texts=("text",),
        wire=lambda part: {"content": [{"type": "text", "text": part.text}]},
    ),
    ImagePart: PartKind(
        "image",
        texts=(),
        identity=("media_type",),
        data="data",
        wire=lambda part: {"content": [{"type": "image_url", "image_url": {"url": _data_url(part)}}]},
    ),
    FilePart: PartKind(
        "file",
        texts=("name",),
        identity=("media_type",),
        data="data",
        wire=lambda part: {
            "content": [{"type": "file", "file": {"filename": part.name, "file_data": _data_url(part)}}]
        },
    ),
    ToolResultPart: PartKind(
        "tool_result",
        texts=("text",),
        identity=("call_id",),
        wire=lambda part: {"tool_call_id": part.call_id, "content": [{"type": "text", "text": part.text}]},
    ),
    ReasoningPart: PartKind("reasoning", texts=("text",), wire=lambda part: {"reasoning_content": part.text}),
    ToolCallPart: PartKind(
        "tool_call",
        texts=("name", "arguments"),
        identity=("call_id",),
        wire=lambda part: {
            "tool_calls": [
                {
                    "id": part.call_id,
                    "type": "function",
                    "function": {"name": part.name, "arguments": part.arguments},
                }
            ]
        },
    ),
    RefusalPart: PartKind("refusal", texts=("text",), wire=lambda part: {"refusal": part.text}),
}


def texts_of(content: Content) -> tuple[str, ...]:
    """What a model reads of the parts as text, in order."""
    if len(content) == 1 and type(content[0]) is TextPart:
        return (content[0].text,)
    return tuple([getattr(part, name) for part in content for name in KINDS[type(part)].texts])


def rewritten(content: Content, change: Callable[[str], str]) -> Content:
    """The parts with each of their texts changed, asked in the order of `texts_of`; the same value where none was."""
    changed = tuple([_rewritten(part, change) for part in content])
    return content if all(new is old for new, old in zip(changed, content, strict=True)) else changed


def _rewritten(part: Any, change: Callable[[str], str]) -> Any:
    old = {name: getattr(part, name) for name in KINDS[type(part)].texts}
    new = {name: change(text) for name, text in old.items()}
    return part if all(new[name] is old[name] for name in old) else replace(part, **new)


def message_fields(content: Content) -> dict[str, Any]:
    """The fields of a chat message that hold these parts, as OpenAI's API and chat templates name them. A text alone is
    a string."""
    if len(content) == 1 and type(content[0]) is TextPart:
        return {"content": content[0].text}
    fields: dict[str, Any] = {"content": None}
    for part in content:
        for name, value in KINDS[type(part)].wire(part).items():
            joined = isinstance(fields.get(name), list) or (name in _WORDS and name in fields)
            fields[name] = fields[name] + value if joined else value
    match fields["content"]:
        case [{"type": "text", "text": text}]:
            fields["content"] = text
    return fields


_WORDS = frozenset({"reasoning_content", "refusal"})
"""Fields of one text, for several parts as for one."""


def digest_form(content: Content) -> str:
    """What a digest of the parts is made over: their texts, each behind its length, and what kind all else is of.

    Unambiguous, and fixed: the digest of a message on record must come out of the same message for ever."""
    if len(content) == 1 and type(content[0]) is TextPart:
        text = content[0].text
        return f"{len(text)}\x1f{text}"
    return "\x1f".join([_digest_form(part) for part in content])


def _digest_form(part: Part) -> str:
    kind = KINDS[type(part)]
    pieces = [] if type(part) is TextPart else [kind.name]
    for name in (*kind.identity, *kind.texts):
        text = getattr(part, name)
        pieces += [str(len(text)), text]
    if kind.data is not None:
        pieces.append(hashlib.sha256(getattr(part, kind.data)).hexdigest())
    return "\x1f".join(pieces)


def _data_url(part: ImagePart | FilePart) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
