"""The text of a block that a model is to read. What no model here can read is refused by name; nothing is fetched."""

from __future__ import annotations

from gateway.api.anthropic.blocks import DocumentBlock, OtherBlock, ReadBlock, SearchResultBlock, TextBlock
from gateway.errors import InvalidRequest


def read_text(block: ReadBlock, param: str) -> str:
    """Raises `InvalidRequest`, naming `param`, for what is not text."""
    match block:
        case TextBlock(text=text):
            return text
        case SearchResultBlock():
            return "\n".join([block.title, block.source, *(part.text for part in block.content)])
        case DocumentBlock(source={"type": "text", "data": str() as text}):
            return "\n".join([part for part in (block.title, block.context) if part] + [text])
    raise _unread(block, param)


def _unread(block: DocumentBlock | OtherBlock, param: str) -> InvalidRequest:
    """A URL is named as such (T22)."""
    if isinstance(block.source, dict) and block.source.get("type") == "url":
        return InvalidRequest(
            f"Content of type `{block.type}` is not supported, and the gateway fetches no URLs.",
            code="url_not_allowed",
            param=param,
            hint="send text",
        )
    return InvalidRequest(
        f"No model here reads content of type `{block.type}`.",
        code="unsupported_parameter",
        param=param,
        hint="send text; of a document, its text with a source of type `text`",
    )
