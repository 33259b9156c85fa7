"""The events of a streamed message, byte-exact and in Anthropic's order. Pure: chunks in, bytes out.

`message_start`, then for each block `content_block_start`, its deltas and `content_block_stop`, then `message_delta`
with the reason of the end and what was used, then `message_stop`. One block is open at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.api.anthropic.dialect import error_object
from gateway.api.anthropic.message import SIGNATURE, opening, stop_fields, usage_object
from gateway.api.render import extension
from gateway.errors import GatewayError
from gateway.flow.answer import Bill
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, Chunk, Delta, ReasoningDelta, RefusalDelta, ToolCallDelta


def event(body: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), orjson.dumps(body))


PING = event({"type": "ping"})


def broken_off(error: GatewayError, request_id: str) -> bytes:
    """The last event of a stream that does not reach its end: no `message_stop` follows."""
    return event(error_object(error, request_id))


class MessageEvents:
    """The state of one stream. `begin`, then `take` for each chunk, then `end`."""

    def __init__(self, reserved: Reserved) -> None:
        self._reserved = reserved
        self._open: Delta | None = None
        """The latest delta of the open block."""
        self._index = -1
        self._refused = False
        self._end: ChoiceEnd | None = None

    def begin(self) -> bytes:
        return event({"type": "message_start", "message": opening(self._reserved)})

    def take(self, chunk: Chunk) -> bytes:
        if isinstance(chunk, ChoiceEnd):
            self._end = chunk
            chunk = chunk.last
        if not isinstance(chunk, Delta) or chunk.is_empty:
            return b""
        data = b""
        if self._open is None or not chunk.goes_on(self._open):
            data = self._stop() + self._start(chunk)
        self._open = chunk
        return data + self._delta(_growth(chunk)) if chunk.text else data

    def end(self, bill: Bill) -> bytes:
        """What was used is known by now."""
        delta = stop_fields(self._reserved, self._end, refused=self._refused)
        told = extension(self._reserved, bill, self._end.stop_cause if self._end is not None else None)
        usage = usage_object(self._reserved, bill.usage)
        body = {"type": "message_delta", "delta": delta, "usage": usage, "x_esclusa": told}
        return self._stop() + event(body) + event({"type": "message_stop"})

    def _start(self, delta: Delta) -> bytes:
        self._index += 1
        self._refused |= isinstance(delta, RefusalDelta)
        opened = event({"type": "content_block_start", "index": self._index, "content_block": self._empty(delta)})
        return opened + PING if self._index == 0 else opened

    def _empty(self, delta: Delta) -> dict[str, Any]:
        match delta:
            case ReasoningDelta():
                return {"type": "thinking", "thinking": "", "signature": ""}
            case ToolCallDelta():
                call_id = delta.call_id or f"toolu_{self._reserved.request_id.hex}_{delta.call}"
                return {"type": "tool_use", "id": call_id, "name": delta.name or "", "input": {}}
        return {"type": "text", "text": ""}

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        data = b""
        if isinstance(self._open, ReasoningDelta):
            data = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._open = None
        return data + event({"type": "content_block_stop", "index": self._index})

    def _delta(self, growth: Mapping[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": growth})


def _growth(delta: Delta) -> dict[str, Any]:
    match delta:
        case ReasoningDelta():
            return {"type": "thinking_delta", "thinking": delta.text}
        case ToolCallDelta():
            return {"type": "input_json_delta", "partial_json": delta.text}
    return {"type": "text_delta", "text": delta.text}
