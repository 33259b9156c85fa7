"""The events of a streamed response, byte-exact and in OpenAI's order. Pure: chunks in, bytes out.

`response.created`, `response.in_progress`, then for each item `output_item.added`, its contents or arguments with their
`.delta` and `.done`, `output_item.done`, and at the end `response.completed`, `response.incomplete` or
`response.failed` with the whole object. Events are numbered from 0. One item is open at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.api.responses.conversation import ItemIds, call_item, content_part, message_item, reasoning_item
from gateway.api.responses.object import Ending, close_last, failed, logprobs_object, response_object
from gateway.errors import GatewayError, UpstreamFailed
from gateway.flow.answer import Bill
from gateway.flow.parts import RefusalPart, TextPart
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, Chunk, Delta, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta

OPEN = "in_progress"
DONE = "completed"


def event(body: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), orjson.dumps(body))


class ResponseEvents:
    """The state of one stream. `begin`, then `take` for each chunk, then `end` or `fail`."""

    def __init__(self, reserved: Reserved, *, store: bool) -> None:
        self._reserved, self._store = reserved, store
        self._ids = ItemIds(reserved.request_id.hex)
        self.number = 0
        """Of the next event."""
        self._latest: Delta | None = None
        """The latest delta of what is open."""
        self._texts: list[str] = []
        """Of the open content or arguments."""
        self._logprobs: list[dict[str, Any]] = []
        self.evidence = 0
        """Tokens with log-probabilities."""
        self._calls = set[int]()
        self.output: list[dict[str, Any]] = []
        """Items that are done, and the open one as far as its contents are done."""
        self._end: ChoiceEnd | None = None

    @property
    def ending(self) -> Ending:
        return Ending.of(self._end)

    def begin(self) -> bytes:
        body = response_object(self._reserved, store=self._store)
        return self._event("created", response=body) + self._event("in_progress", response=body)

    def take(self, chunk: Chunk) -> bytes:
        if isinstance(chunk, ChoiceEnd):
            self._end = chunk
            chunk = chunk.last
        if not isinstance(chunk, Delta) or (chunk.is_empty and not chunk.logprobs):
            return b""
        data = b""
        if self._latest is None or not chunk.goes_on(self._latest):
            data = self._close(chunk) + self._open(chunk)
        self._latest = chunk
        return data + self._grow(chunk)

    def last_item(self) -> bytes:
        """Ends what is open; an answer without anything is a message without text."""
        data = b"" if self.output else self._begin_empty()
        data += self._close(None, DONE if self.ending.status == DONE else "incomplete")
        close_last(self.output, self.ending)
        return data

    def end(self, body: Mapping[str, Any]) -> bytes:
        """With the whole object."""
        return self._event(str(body["status"]), response=body)

    def fail(self, error: GatewayError, bill: Bill) -> bytes:
        """Where the stream breaks off: what is open stays so, and no other event follows."""
        told = self._plain({"type": "error", "code": error.code, "message": error.message, "param": error.param})
        for item in self.output:
            item["status"] = "incomplete" if item["status"] == OPEN else item["status"]
        return told + self._event("failed", response=failed(self._reserved, bill, self.output, error))

    def _begin_empty(self) -> bytes:
        self._latest = TextDelta()
        return self._open(self._latest)

    def _open(self, delta: Delta) -> bytes:
        """The item of this delta, where it is not open already, and its content."""
        self._texts, self._logprobs = [], []
        index = len(self.output)
        match delta:
            case ToolCallDelta():
                if delta.call in self._calls:
                    raise UpstreamFailed("The model went back to a call of a tool that it had ended.")
                self._calls.add(delta.call)
                call_id = delta.call_id or f"call_{self._reserved.request_id.hex}_{delta.call}"
                item = call_item(self._ids("fc", index), call_id, delta.name or "", "", OPEN)
                return self._add(item)
            case ReasoningDelta():
                opened = self._add(reasoning_item(self._ids("rs", index), OPEN))
                return opened + self._part("added", {"type": "reasoning_text", "text": ""})
        opened = b""
        if not self._is_open("message"):
            opened = self._add(message_item(self._ids("msg", index), OPEN))
        return opened + self._part("added", content_part(_part(delta, "")))

    def _add(self, item: dict[str, Any]) -> bytes:
        self.output.append(item)
        return self._event("output_item.added", output_index=len(self.output) - 1, item=item)

    def _grow(self, delta: Delta) -> bytes:
        self._texts.append(delta.text)
        if isinstance(delta, TextDelta):
            logprobs = logprobs_object(delta.logprobs)
            self._logprobs += logprobs
            self.evidence += len(logprobs)
            return self._in_content("output_text.delta", delta=delta.text, logprobs=logprobs)
        if not delta.text:
            return b""
        if isinstance(delta, ToolCallDelta):
            return self._in_item("function_call_arguments.delta", delta=delta.text)
        kind = "reasoning_text" if isinstance(delta, ReasoningDelta) else "refusal"
        return self._in_content(f"{kind}.delta", delta=delta.text)

    def _close(self, before: Delta | None, status: str = DONE) -> bytes:
        """What is open: its content, and its item unless `before` goes on in the same message."""
        if self._latest is None:
            return b""
        text, item = "".join(self._texts), self.output[-1]
        match self._latest:
            case ToolCallDelta():
                item["arguments"] = text
                data = self._in_item("function_call_arguments.done", arguments=text, name=item["name"])
            case ReasoningDelta():
                data = self._in_content("reasoning_text.done", text=text)
                data += self._ended_part({"type": "reasoning_text", "text": text})
            case RefusalDelta():
                data = self._in_content("refusal.done", refusal=text)
                data += self._ended_part(content_part(RefusalPart(text)))
            case _:
                data = self._in_content("output_text.done", text=text, logprobs=self._logprobs)
                data += self._ended_part(content_part(TextPart(text), self._logprobs))
        if isinstance(before, TextDelta | RefusalDelta) and self._is_open("message"):
            return data
        item["status"], self._latest = status, None
        return data + self._event("output_item.done", output_index=len(self.output) - 1, item=item)

    def _ended_part(self, part: Mapping[str, Any]) -> bytes:
        data = self._part("done", part)
        self.output[-1]["content"].append(part)
        return data

    def _is_open(self, kind: str) -> bool:
        return bool(self.output) and self.output[-1]["status"] == OPEN and self.output[-1]["type"] == kind

    def _part(self, what: str, part: Mapping[str, Any]) -> bytes:
        return self._in_content(f"content_part.{what}", part=part)

    def _in_content(self, kind: str, **fields: Any) -> bytes:
        return self._in_item(kind, content_index=len(self.output[-1]["content"]), **fields)

    def _in_item(self, kind: str, **fields: Any) -> bytes:
        item = self.output[-1]
        return self._event(kind, item_id=item["id"], output_index=len(self.output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return self._plain({"type": f"response.{kind}", **fields})

    def _plain(self, body: dict[str, Any]) -> bytes:
        told = {"type": body.pop("type"), "sequence_number": self.number, **body}
        self.number += 1
        return event(told)


def _part(delta: Delta, text: str) -> TextPart | RefusalPart:
    return RefusalPart(text) if isinstance(delta, RefusalDelta) else TextPart(text)
