"""E-mail addresses: personal, but without a check digit. They only look like what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.guardrails.detectors.form import BREAKS
from gateway.guardrails.spans import Span

NAME = "contact"
LOCAL_PART = 64
"""RFC 5321 section 4.5.3.1.1."""
_LETTERS = "A-Za-z0-9\u00c0-\u024f"
"""Latin ones: a text without blanks is not taken for an address as a whole."""
_LOCAL = re.compile(rf"[{_LETTERS}._%+\-]")
_BROKEN = re.compile(rf"(?<![{_LETTERS}._%+\-])[{_LETTERS}._%+\-]{{0,63}}[{_LETTERS}_][ \t\r\n]{{1,3}}$")
_BLANKS = " \t\r\n"
_GAP = re.compile(r"[ \t\r\n]{0,3}")
_LAST_LABELS = (
    "com org net edu gov gob gub info biz io es mx ar co cl pe br uy ve ec bo py cr pa do gt hn sv ni cu "
    "pt fr de it uk us eu cat ai dev app"
)
_COMMON = frozenset(_LAST_LABELS.split())
"""Last labels by which an address is believed although a blank or a line break stands beside its `@`."""
_SERVICES = ("git@", "svn@", "ssh@")
"""Accounts of machines in the addresses of repositories."""
_DOMAIN = re.compile(rf"[{_LETTERS}\-]{{1,63}}(?:\.[{_LETTERS}\-]{{1,63}}){{1,6}}")


@dataclass(frozen=True, slots=True)
class Email:
    """Looks for the sign first and then to both sides: cheap where there is none."""

    category: str = "email"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:  # noqa: ARG002
        at, floor = text.find("@", start, end), start
        while at >= 0:
            found = _around(text, at, floor)
            if found is not None:
                begin, floor = found
                yield Span(begin, floor, self.category, self.detector, certain=False)
            at = text.find("@", max(at + 1, floor), end)


def _around(text: str, at: int, floor: int) -> tuple[int, int] | None:
    begin = _local_start(text, max(floor, at - LOCAL_PART), at)
    gap = _GAP.match(text, at + 1)
    after = at + 1 if gap is None else gap.end()
    domain = _DOMAIN.match(text, after)
    size = 0 if domain is None else _domain_size(domain[0])
    if size == 0 or text[begin : at + 1] in _SERVICES:
        return None
    if begin < at and after == at + 1:
        return begin, after + size
    if text[after : after + size].rpartition(".")[2].lower() not in _COMMON:
        return None
    if begin < at:
        return begin, after + size
    broken = _before_blank(text, at)
    return None if broken is None or broken < floor else (broken, after + size)


def _local_start(text: str, lowest: int, at: int) -> int:
    while at > lowest and _LOCAL.match(text, at - 1):
        at -= 1
    return at


def _domain_size(text: str) -> int:
    """Up to the last label of letters: `empresa.es-`, `empresa.es-Madrid` and `empresa.es.2` end behind `es`."""
    name, dot, label = text.rpartition(".")
    while dot:
        letters = label.partition("-")[0]
        if letters.isalpha():
            return len(name) + 1 + len(letters)
        name, dot, label = name.rpartition(".")
    return 0


def email_start(text: str) -> int | None:
    """The start of an address that may continue after the end of the text, or after the blank behind it."""
    at = text.rfind("@", max(0, len(text) - 330))
    if at >= 0:
        rest = text[at + 1 :].lstrip(_BLANKS)
        if not any(sign in rest for sign in BREAKS):
            begin = _local_start(text, max(0, at - LOCAL_PART), at)
            return begin if begin < at else _before_blank(text, at)
    return _before_blank(text, len(text))


def _before_blank(text: str, end: int) -> int | None:
    found = _BROKEN.search(text, max(0, end - LOCAL_PART - 4), end)
    return None if found is None or found[0].strip(_BLANKS).isalpha() else found.start()


EMAIL = Email()
