"""E-mail addresses and telephone numbers: personal, but without a check digit. They only look like what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.guardrails.detector import Form
from gateway.guardrails.spans import Span

NAME = "contact"
LOCAL_PART = 64
"""RFC 5321 section 4.5.3.1.1."""
_LETTERS = "A-Za-z0-9\u00c0-\u024f"
"""Latin ones: a text without blanks is not taken for an address as a whole."""
_LOCAL = re.compile(rf"[{_LETTERS}._%+\-]")
_DOMAIN = re.compile(rf"[{_LETTERS}\-]{{1,63}}(?:\.[{_LETTERS}\-]{{1,63}}){{1,6}}")


@dataclass(frozen=True, slots=True)
class Email:
    """Looks for the sign first and then to both sides: cheap where there is none."""

    category: str = "email"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:  # noqa: ARG002
        at, floor = text.find("@", start, end), start
        while at >= 0:
            domain = _DOMAIN.match(text, at + 1)
            begin = _local_start(text, max(floor, at - LOCAL_PART), at)
            size = 0 if domain is None else _domain_size(domain[0])
            if begin < at and size > 0:
                floor = at + 1 + size
                yield Span(begin, floor, self.category, self.detector, certain=False)
            at = text.find("@", max(at + 1, floor), end)


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


def _phone(text: str) -> bool:
    """Not a row of zeros."""
    return len(set(filter(str.isdigit, text))) > 2


_CUES = (
    r"tel(?:\.|[eé]fonos?|f\.?|ephone)?|tfno\.?|tlfn?o?\.?|fono|m[oó]vil|celular|cel\.?|whats?app|phone|mobile|"
    r"ll[aá]m[ae](?:me|nos|le|r)?|call (?:me|us)?"
)
_STARTS = ("tel", "tfno", "tlf", "fono", "móvil", "movil", "cel", "what", "phone", "mobile", "llám", "llam", "call ")
_MORE = r"(?:\)?[ .\-]?\(?[0-9]){7,14}"
"""8 to 15 digits in all (E.164), never two separators in a row except around an area code."""
CONTACT = (
    Email(),
    Form("phone", NAME, re.compile(rf"(?<![\w+])\+[1-9]{_MORE}(?!\w)"), _phone, ("+",), certain=False),
    Form(
        "phone",
        NAME,
        re.compile(rf"(?i)\b(?:{_CUES})(?!\w)[^0-9+\n]{{0,20}}?(?<![\w.])(\(?[0-9]{_MORE})(?!\w)"),
        _phone,
        _STARTS,
        group=1,
        certain=False,
    ),
)
