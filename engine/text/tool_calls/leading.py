"""Calls as JSON at the beginning of an answer, bare or in a fence (Llama 3; Qwen's coders write theirs so too)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine.text.tool_calls.json_call import JsonCall
from engine.text.tool_calls.pieces import AnswerParser, CallBegin, Piece, PlainText

PYTHON_TAG = "<|python_tag|>"
FENCE, LANGUAGE = "```", "json"
MAX_FENCE = 24
"""Characters of the line that opens a fence."""
SPACE = " \n\t\r"
BETWEEN = f"{SPACE};`"


class LeadingCalls:
    """`{"name": ..., "parameters": ...}`, several of them joined by `;`, before which `<|python_tag|>` or a fence may
    stand. Anything else, from its first sign on, is read by what `rest` makes for the number of calls so far.

    `names`: the functions that were offered. JSON that names none of them is no call.
    """

    def __init__(self, rest: Callable[[int], AnswerParser] | None = None, names: Collection[str] | None = None) -> None:
        self._make_rest, self._names = rest or (lambda _: PlainText()), names
        self._rest: AnswerParser | None = None
        self._raw = ""
        """Since the beginning, or since the last call."""
        self._call: JsonCall | None = None
        self._calls = 0

    def feed(self, text: str) -> list[Piece]:
        pieces = list[Piece]()
        while text:
            if self._rest is not None:
                return pieces + self._rest.feed(text)
            text = self._in_call(text, pieces) if self._call is not None else self._between(text)
        return pieces

    def finish(self) -> list[Piece]:
        if self._rest is None and self._call is not None and self._call.begun:
            return []
        if self._rest is None and self._calls and not self._raw.strip(BETWEEN):
            return []
        rest = self._rest or self._make_rest(self._calls)
        return [*(rest.feed(self._raw) if self._rest is None else []), *rest.finish()]

    def _between(self, text: str) -> str:
        """What goes on: the call, or all that was held where it is none."""
        self._raw += text
        bare = self._raw.lstrip(BETWEEN if self._calls else SPACE)
        if self._calls and LANGUAGE.startswith(bare):
            return ""
        if self._calls and bare.startswith(LANGUAGE):  # of a further fence
            bare = bare[len(LANGUAGE) :].lstrip(SPACE)
        if bare.startswith(PYTHON_TAG):
            bare = bare[len(PYTHON_TAG) :].lstrip(SPACE)
        elif PYTHON_TAG.startswith(bare) or (not self._calls and FENCE.startswith(bare)):
            return ""
        if bare.startswith(FENCE):
            line, newline, behind = bare.partition("\n")
            if len(line) > MAX_FENCE or (newline and behind.lstrip(SPACE)[:1] not in ("", "{")):
                return self._give_up()
            bare = behind.lstrip(SPACE)
        if not bare:
            return ""
        if bare[0] != "{":
            return self._give_up()
        self._call, self._raw = JsonCall(self._calls), self._raw[: len(self._raw) - len(bare)]
        return bare

    def _in_call(self, text: str, pieces: list[Piece]) -> str:
        assert self._call is not None
        begun = self._call.begun
        found, rest = self._call.feed(text)
        self._raw += text
        if not begun and not self._is_offered(found):
            return self._give_up()
        pieces += found
        if not (self._call.ended or self._call.broken):
            return ""
        self._call, self._raw = None, ""
        self._calls += 1
        return rest

    def _is_offered(self, found: list[Piece]) -> bool:
        assert self._call is not None
        if not found:
            return not (self._call.broken or self._call.ended)
        first = found[0]
        return self._names is None or (isinstance(first, CallBegin) and first.name in self._names)

    def _give_up(self) -> str:
        raw, self._raw, self._call = self._raw, "", None
        self._rest = self._make_rest(self._calls)
        return raw
