"""Channels: what a model thinks, says and calls are messages of their own (gpt-oss, OpenAI's harmony format)."""

from __future__ import annotations

import re

from engine.text.tool_calls.marks import find, held
from engine.text.tool_calls.pieces import CallArguments, CallBegin, Piece, Reasoning, Text

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
ENDS = (END, CALL, RETURN, START, CHANNEL)
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.:/-]{1,256})")


class Channels:
    """`<|channel|>analysis` is reasoning, `final` is text, `commentary to=functions.f` is a call, and without a
    recipient text that comes before one."""

    def __init__(self) -> None:
        self._buffer = ""
        self._header: str | None = ""
        """Of the message that begins; None inside its body."""
        self._kind = "text"
        self._calls = 0
        self._marked = False
        """A mark was seen: until then the text may be plain."""
        self._plain = False

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces = list[Piece]()
        while self._buffer and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._buffer = self._buffer, ""
        if self._header is not None:
            return [Text(rest)] if rest and not self._marked else []
        return self._told(rest)

    def _step(self, pieces: list[Piece]) -> bool:
        if self._header is None:
            return self._body(pieces)
        found = find(self._buffer, (MESSAGE, CHANNEL, START, END))
        if found is None:
            size = len(self._buffer) - held(self._buffer, MARKS)
            if not self._marked and (self._plain or self._buffer[:size].strip()):
                pieces += self._before_marks(size)
            return False
        if not self._marked and (self._plain or self._buffer[: found[0]].strip()):
            pieces += self._before_marks(found[0])
            found = (0, found[1])
        self._marked = True
        before, self._buffer = self._buffer[: found[0]], self._buffer[found[0] + len(found[1]) :]
        if found[1] == MESSAGE:
            self._begin(self._header + before, pieces)
        else:
            self._header = "" if found[1] == END else self._header + before + " "
        return True

    def _before_marks(self, size: int) -> list[Piece]:
        text, self._buffer, self._plain = self._buffer[:size], self._buffer[size:], True
        return [Text(text)] if text else []

    def _begin(self, header: str, pieces: list[Piece]) -> None:
        self._header = None
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            self._kind = "call"
            pieces.append(CallBegin(self._calls, recipient[1]))
        else:
            self._kind = "reasoning" if "analysis" in header else "text"

    def _body(self, pieces: list[Piece]) -> bool:
        found = find(self._buffer, ENDS)
        size = len(self._buffer) - held(self._buffer, ENDS) if found is None else found[0]
        pieces += self._told(self._buffer[:size])
        self._buffer = self._buffer[size:]
        if found is None:
            return False
        self._calls += self._kind == "call"
        self._header = ""
        if found[1] not in (START, CHANNEL):
            self._buffer = self._buffer[len(found[1]) :]
        return True

    def _told(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._kind == "call":
            return [CallArguments(self._calls, text)]
        return [Reasoning(text) if self._kind == "reasoning" else Text(text)]
