"""Calls between an opening and a closing mark, each an object with name and arguments (Hermes, Qwen)."""

from __future__ import annotations

from engine.text.tool_calls.json_call import JsonCall
from engine.text.tool_calls.marks import find, held
from engine.text.tool_calls.pieces import Piece, Text


class TaggedCalls:
    """Text, and `<tool_call>{"name": ..., "arguments": ...}</tool_call>` as often as the model likes."""

    def __init__(self, opening: str = "<tool_call>", closing: str = "</tool_call>", *, first: int = 0) -> None:
        """`first`: the number of the first call."""
        self._opening, self._closing = opening, closing
        self._buffer = ""
        """Outside a call: text that may begin a mark."""
        self._raw = ""
        """Of the call that is open, from its mark on, until it is known to be one."""
        self._call: JsonCall | None = None
        self._calls = first
        self._after = False
        """Behind the object, before the closing mark."""

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces = list[Piece]()
        while self._buffer and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._buffer = self._buffer, ""
        if self._call is not None and not self._call.begun:
            return [Text(self._raw)]
        is_space = self._calls and not rest.strip()
        return [Text(rest)] if rest and self._call is None and not is_space else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._call is not None:
            return self._in_call(pieces)
        if self._after:
            return self._behind_call()
        found = find(self._buffer, (self._opening,))
        if found is not None:
            if shown := self._buffer[: found[0]].rstrip():
                pieces.append(Text(shown))
            self._buffer = self._buffer[found[0] + len(self._opening) :]
            self._call, self._raw = JsonCall(self._calls), self._opening
            return True
        keep = held(self._buffer, (self._opening,))
        # White space before a call is not told, so it waits for what follows.
        body = self._buffer[: len(self._buffer) - keep]
        kept = len(body) - len(body.rstrip()) + keep
        shown = self._buffer[: len(self._buffer) - kept]
        if shown:
            pieces.append(Text(shown))
        self._buffer = self._buffer[len(self._buffer) - kept :]
        return False

    def _in_call(self, pieces: list[Piece]) -> bool:
        assert self._call is not None
        text, self._buffer = self._buffer, ""
        begun = self._call.begun
        found, rest = self._call.feed(text)
        pieces += found
        if not self._call.begun:
            self._raw += text
        if self._call.broken:
            if begun or self._call.begun:
                self._close()
                self._buffer = rest
            else:
                # The mark is text, and what stands behind it is read anew.
                self._buffer, self._call = self._raw[len(self._opening) :], None
                pieces.append(Text(self._opening))
            return bool(self._buffer)
        if self._call.ended:
            self._buffer = rest
            self._close()
            return bool(rest)
        return False

    def _close(self) -> None:
        self._call, self._raw, self._after = None, "", True
        self._calls += 1

    def _behind_call(self) -> bool:
        """White space and the closing mark are part of the call; anything else is text again."""
        stripped = self._buffer.lstrip()
        if stripped.startswith(self._closing):
            self._buffer, self._after = stripped[len(self._closing) :], False
            return True
        if not stripped or self._closing.startswith(stripped):
            return False
        self._after = False
        return True
