"""Calls between marks of their own, their arguments in a fence or bare (DeepSeek V3, R1, V3.1)."""

from __future__ import annotations

from engine.text.tool_calls.json_call import MAX_NAME, JsonValue
from engine.text.tool_calls.marks import find, held
from engine.text.tool_calls.pieces import CallArguments, CallBegin, Piece, Text

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, SEPARATOR, ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (ALL, ONE, SEPARATOR, ONE_END, ALL_END)
FENCE = "```json"
AROUND = " \t\r\n`"
"""Of no meaning between calls: the end of a fence, line breaks."""


class MarkedCalls:
    """`ONE function SEPARATOR name, fence, arguments, fence ONE_END`, or `ONE name SEPARATOR arguments ONE_END`."""

    def __init__(self) -> None:
        self._buffer = ""
        self._calls = 0
        self._value: JsonValue | None = None
        self._in_call = self._in_calls = False

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces = list[Piece]()
        while self._buffer and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._buffer = self._buffer, ""
        if self._value is not None or (self._calls and not rest.strip(AROUND)):
            return []
        if self._in_call:
            rest = ONE + rest
        return [Text(rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._value is not None:
            return self._arguments(pieces)
        return self._head(pieces) if self._in_call else self._text(pieces)

    def _text(self, pieces: list[Piece]) -> bool:
        """Until the next call. The marks around a list of calls say nothing by themselves."""
        found = find(self._buffer, MARKS)
        if found is None:
            if self._in_calls:
                return False
            size = len(self._buffer[: len(self._buffer) - held(self._buffer, MARKS)].rstrip())
            if size:
                pieces.append(Text(self._buffer[:size]))
            self._buffer = self._buffer[size:]
            return False
        before = self._buffer[: found[0]]
        if shown := before.strip(AROUND) if self._in_calls else before.rstrip():
            pieces.append(Text(shown))
        self._in_calls = found[1] != ALL_END
        self._in_call = found[1] == ONE
        self._buffer = self._buffer[found[0] + len(found[1]) :]
        return True

    def _head(self, pieces: list[Piece]) -> bool:
        found = find(self._buffer, MARKS)
        if found is None:
            if len(self._buffer) <= 4 * MAX_NAME:
                return False
            return self._give_up(pieces)
        head, rest = self._buffer[: found[0]].strip(), self._buffer[found[0] + len(found[1]) :]
        if found[1] != SEPARATOR or not head or len(head) > MAX_NAME:
            return self._give_up(pieces)
        if head == "function":
            line, newline, behind = rest.partition("\n")
            fence = behind.lstrip()
            if not newline or (len(fence) < len(FENCE) and FENCE.startswith(fence)):
                return len(line) > MAX_NAME and self._give_up(pieces)
            if not fence.startswith(FENCE) or not line.strip() or len(line) > MAX_NAME:
                return self._give_up(pieces)
            head, rest = line.strip(), fence[len(FENCE) :]
        pieces.append(CallBegin(self._calls, head))
        self._buffer, self._value, self._in_call = rest.lstrip(), JsonValue(), False
        return True

    def _give_up(self, pieces: list[Piece]) -> bool:
        """The mark is text, and what stands behind it is read anew."""
        pieces.append(Text(ONE))
        self._in_call = self._in_calls = False
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        assert self._value is not None
        if not self._value.begun:
            self._buffer = self._buffer.lstrip()
        size = self._value.feed(self._buffer)
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        if part:
            pieces.append(CallArguments(self._calls, part))
        if not self._value.ended:
            return False
        self._value = None
        self._calls += 1
        return bool(self._buffer)
