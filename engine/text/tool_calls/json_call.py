"""Calls written as JSON, read while they grow: one value, or an object with the function's name and its arguments."""

from __future__ import annotations

import json
import re

from engine.text.tool_calls.pieces import CallArguments, CallBegin, Piece

_SPACE = " \t\r\n"
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*')
_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
MAX_NAME = 256
MAX_KEY = 4 * MAX_NAME


class JsonValue:
    """The end of one JSON value in a growing text."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = False
        self.begun = False
        """Anything but white space has come."""
        self._scalar = False
        self.ended = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value; `ended` once it is complete."""
        for at, sign in enumerate(text):
            if self._string:
                if self._escaped:
                    self._escaped = False
                elif sign == "\\":
                    self._escaped = True
                elif sign == '"':
                    self._string = False
                    if not self._depth:
                        return self._end(at + 1)
            elif sign == '"':
                self._string = self.begun = True
            elif sign in "{[":
                self._depth += 1
                self.begun = True
            elif sign in "}]":
                if not self._depth:
                    return self._end(at)  # the end of what the value is in
                self._depth -= 1
                if not self._depth:
                    return self._end(at + 1)
            elif not self._depth and sign in _SPACE + ",":
                if self._scalar:
                    return self._end(at)
            elif not self._depth:
                self.begun = self._scalar = True
        return len(text)

    def _end(self, size: int) -> int:
        self.ended = True
        return size


class JsonCall:
    """One object such as `{"name": "f", "arguments": {...}}`, fed from its opening brace on.

    The arguments are told as they grow once the name is known. Where they come first, the call is told at its end.
    """

    def __init__(self, call: int) -> None:
        self._call = call
        self._buffer = ""
        self._opened = False
        self._name: str | None = None
        self._kept: str | None = None
        """Arguments that came before the name."""
        self._value: JsonValue | None = None
        self._key = ""
        self._taken = ""
        self._grows = False
        """The value is told while it grows."""
        self.begun = False
        """A call was told."""
        self.ended = self.broken = False

    def feed(self, text: str) -> tuple[list[Piece], str]:
        """The pieces that are certain now, and the rest behind the object's end. `broken` where it is no call."""
        self._buffer += text
        pieces = list[Piece]()
        while not self.ended and not self.broken and self._step(pieces):
            pass
        rest = ""
        if self.ended or self.broken:
            rest, self._buffer = self._buffer, ""
        return pieces, rest

    def _step(self, pieces: list[Piece]) -> bool:
        """One move; False where more text is needed."""
        if not self._opened:
            stripped = self._buffer.lstrip(_SPACE)
            if not stripped:
                return False
            self._opened, self.broken = True, stripped[0] != "{"
            self._buffer = stripped[1:]
            return not self.broken
        if self._value is not None:
            return self._grow(pieces)
        # A model may fill a gap for ever: nothing of it is looked at twice.
        stripped = self._buffer = self._buffer.lstrip(_SPACE + ",")
        if stripped.startswith("}"):
            self._buffer = stripped[1:]
            self._end()
            return False
        key = _KEY.match(self._buffer)
        if key is None:
            self.broken = bool(stripped) and (stripped[0] != '"' or len(stripped) > MAX_KEY)
            return False
        if len(key[1]) > MAX_NAME:
            self.broken = True
            return False
        self._key, self._value, self._taken, self._grows = key[1], JsonValue(), "", False
        self._buffer = self._buffer[key.end() :]
        return True

    def _grow(self, pieces: list[Piece]) -> bool:
        assert self._value is not None
        size = self._value.feed(self._buffer)
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        ended = self._value.ended
        if ended:
            self._value = None
        if not self._taken and not self._grows:
            part = part.lstrip(_SPACE)
            # Some models write the arguments as JSON in a text, or `null` for none; these are read once they are whole.
            self._grows = part[:1] not in ("", '"', "n") and self._key in _ARGUMENT_KEYS and self._name is not None
        if not self._grows:
            self._taken += part
            if ended:
                self._whole(self._taken, pieces)
        elif part:
            pieces.append(CallArguments(self._call, part))
        return ended

    def _whole(self, value: str, pieces: list[Piece]) -> None:
        if self._key in _ARGUMENT_KEYS:
            self._kept = "{}" if value.strip() == "null" else _string(value) or value
            if self._name is not None:
                pieces.append(CallArguments(self._call, self._kept))
        elif self._key in _NAME_KEYS and self._name is None:
            name = _string(value)
            if name is None or not name or len(name) > MAX_NAME:
                self.broken = True
                return
            self._name = name
            self._begin(pieces)

    def _begin(self, pieces: list[Piece]) -> None:
        assert self._name is not None
        self.begun = True
        pieces.append(CallBegin(self._call, self._name))
        if self._kept is not None:
            pieces.append(CallArguments(self._call, self._kept))

    def _end(self) -> None:
        self.ended = True
        self.broken = self._name is None


def _string(value: str) -> str | None:
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
