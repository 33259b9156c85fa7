"""Calls behind `[TOOL_CALLS]`: a list of objects, or a name, `[ARGS]` and the arguments (Mistral)."""

from __future__ import annotations

from engine.text.tool_calls.json_call import MAX_NAME, JsonCall, JsonValue
from engine.text.tool_calls.marks import find, held
from engine.text.tool_calls.pieces import CallArguments, CallBegin, Piece, Text

OPENING, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_BETWEEN = " ,\n\t\r"


class MistralCalls:
    """Text before the first mark is text; from there on all is calls, and what cannot be read as one is text again."""

    def __init__(self) -> None:
        self._buffer = ""
        self._calls = 0
        self._in_calls = self._listed = False
        self._call: JsonCall | None = None
        self._raw = ""
        """Of the object that is open."""
        self._lead = ""
        """What stands before the next call, from the mark or the last call on: text where none comes."""
        self._value: JsonValue | None = None

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces = list[Piece]()
        while self._buffer and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._buffer = self._buffer, ""
        if self._value is not None or (self._call is not None and self._call.begun):
            return []
        rest = self._lead + self._raw + rest
        if self._in_calls and self._calls:
            is_end = not rest.replace(OPENING, "").strip(_BETWEEN + "]")
            rest = "" if is_end else rest.lstrip(_BETWEEN + "]")
        return [Text(rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._value is not None:
            return self._arguments(pieces)
        if self._call is not None:
            return self._object(pieces)
        return self._between(pieces) if self._in_calls else self._text(pieces)

    def _text(self, pieces: list[Piece]) -> bool:
        found = find(self._buffer, (OPENING,))
        size = len(self._buffer) - held(self._buffer, (OPENING,)) if found is None else found[0]
        if size:
            pieces.append(Text(self._buffer[:size]))
        self._buffer = self._buffer[size:]
        if found is None:
            return False
        self._buffer, self._in_calls, self._listed, self._lead = self._buffer[len(OPENING) :], True, False, OPENING
        return True

    def _between(self, pieces: list[Piece]) -> bool:
        bare = self._buffer.lstrip(_BETWEEN + ("]" if self._listed else ""))
        if not bare:
            return False
        skipped = self._buffer[: len(self._buffer) - len(bare)]
        if bare.startswith(OPENING):
            self._lead += skipped + OPENING
            self._buffer, self._listed = bare[len(OPENING) :], False
            return True
        if bare[0] == "[":
            if OPENING.startswith(bare):
                return False
            self._lead += skipped + "["
            self._buffer, self._listed = bare[1:], True
            return True
        if bare[0] == "{":
            self._lead += skipped
            self._buffer, self._call = bare, JsonCall(self._calls)
            return True
        return self._named(bare, pieces)

    def _named(self, bare: str, pieces: list[Piece]) -> bool:
        found = find(bare, (ARGS,))
        if found is None:
            if len(bare) <= 2 * MAX_NAME:
                return False
            return self._give_up(pieces)
        name = bare[: found[0]].split(CALL_ID)[0].strip()
        if not name or len(name) > MAX_NAME:
            return self._give_up(pieces)
        pieces.append(CallBegin(self._calls, name))
        self._lead = ""
        self._buffer, self._value = bare[found[0] + len(ARGS) :], JsonValue()
        return True

    def _give_up(self, pieces: list[Piece]) -> bool:
        """The mark is text, and what stands behind it is read anew."""
        lead, self._lead, self._in_calls = self._lead, "", False
        if self._calls:
            lead = lead.lstrip(_BETWEEN + "]")
            self._buffer = self._buffer.lstrip(_BETWEEN + "]") if not lead else self._buffer
        if lead:
            pieces.append(Text(lead))
        return True

    def _object(self, pieces: list[Piece]) -> bool:
        assert self._call is not None
        text, self._buffer = self._buffer, ""
        found, rest = self._call.feed(text)
        pieces += found
        self._raw += text
        call = self._call
        if not (call.ended or call.broken):
            return False
        self._call, raw, self._raw = None, self._raw, ""
        if not call.begun:
            self._buffer = raw
            return self._give_up(pieces)
        self._calls += 1
        self._buffer, self._lead = rest, ""
        return bool(rest)

    def _arguments(self, pieces: list[Piece]) -> bool:
        assert self._value is not None
        size = self._value.feed(self._buffer)
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        if part:
            pieces.append(CallArguments(self._calls, part))
        if self._value.ended:
            self._value = None
            self._calls += 1
        return bool(self._buffer)
