"""Pieces of a choice: what its text turns out to be. Frozen; no tokens, no models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Of what a model writes before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of the function `name`; its arguments follow. Calls are numbered from 0."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the arguments of one call: JSON, as the model writes it."""

    call: int
    text: str


Piece: TypeAlias = Text | Reasoning | CallBegin | CallArguments


class PlainText:
    """The parser of answers in which nothing has a meaning of its own."""

    def feed(self, text: str) -> list[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class AnswerParser(Protocol):
    """Reads one choice. However the text is cut into feeds, the pieces joined are the same, and nothing of it is lost:
    what turns out to be no call is text."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """What was held back. Call once, at the end."""
        ...
