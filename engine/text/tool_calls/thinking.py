"""Splitting of thought from answer: `<think>...</think>` at the beginning (Qwen 3, DeepSeek R1)."""

from __future__ import annotations

from engine.text.tool_calls.marks import find, held
from engine.text.tool_calls.pieces import AnswerParser, Piece, Reasoning

OPENING, CLOSING = "<think>", "</think>"


class Thinking:
    """`begun`: the prompt has opened the block already. What follows the block goes to `inner`."""

    def __init__(self, inner: AnswerParser, *, begun: bool = False) -> None:
        self._inner = inner
        self._buffer = ""
        self._state = "thinking" if begun else "before"
        self._told = False

    def feed(self, text: str) -> list[Piece]:
        if self._state == "behind":
            return self._inner.feed(text)
        self._buffer += text
        if self._state == "before":
            bare = self._buffer.lstrip()
            if OPENING.startswith(bare[: len(OPENING)]) and len(bare) < len(OPENING):
                return []
            if not bare.startswith(OPENING):
                self._state = "behind"
                return self._rest()
            self._buffer, self._state = bare[len(OPENING) :], "thinking"
        return self._think() if self._state == "thinking" else self._gap()

    def finish(self) -> list[Piece]:
        if self._state == "thinking":
            thought, self._buffer = self._buffer, ""
            return [Reasoning(thought)] if thought.strip() else []
        return [*self._rest(), *self._inner.finish()]

    def _rest(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        return self._inner.feed(text) if text else []

    def _think(self) -> list[Piece]:
        """White space at either end of the block is not told, so that at its end waits for what follows."""
        if not self._told:
            self._buffer = self._buffer.lstrip()
        found = find(self._buffer, (CLOSING,))
        size = len(self._buffer) - held(self._buffer, (CLOSING,)) if found is None else found[0]
        thought = self._buffer[:size].rstrip()
        pieces: list[Piece] = [Reasoning(thought)] if thought else []
        self._told |= bool(thought)
        if found is None:
            self._buffer = self._buffer[len(thought) :]
            return pieces
        self._buffer, self._state = self._buffer[found[0] + len(CLOSING) :], "gap"
        return [*pieces, *self._gap()]

    def _gap(self) -> list[Piece]:
        """The blank lines behind the block belong to it."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return []
        self._state = "behind"
        return self._rest()
