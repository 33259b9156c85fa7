"""Bank accounts by their IBAN (ISO 13616): the country says how long it is, so what follows is never part of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.guardrails.detectors.checksums import mod_97
from gateway.guardrails.spans import Span

NAME = "payment"
LENGTHS = {
    country: size
    for size, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK",
        21: "CH CR HR LI LV",
        22: "BG BH DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
_IBAN = re.compile(
    r"(?:(?<![0-9A-Za-z])|(?<=\b[Ii][Bb][Aa][Nn])|(?<=\b[Dd][Nn][Ii]))"
    r"[A-Za-z]{2}[0-9]{2}(?:[0-9A-Za-z]{11,30}|(?:[ \n._/-]?[0-9A-Z]){11,30})"
)
_BIC = re.compile(r"[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?(?![A-Za-z0-9])")
"""The code of a bank, which may be written against the account."""


def is_iban(bare: str) -> bool:
    return LENGTHS.get(bare[:2]) == len(bare) and mod_97(bare)


@dataclass(frozen=True, slots=True)
class Iban:
    """In one piece, or in groups of any size."""

    category: str = "iban"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:  # noqa: ARG002
        match = _IBAN.search(text, start, end)
        while match is not None:
            begin, size = match.start(), self._size(match[0])
            if size is not None and self._ends(text, begin + size):
                yield Span(begin, begin + size, self.category, self.detector)
            match = _IBAN.search(text, begin + 1, end)

    def _ends(self, text: str, end: int) -> bool:
        """Not in the middle of a longer word; letters that are glued to its last digit do not count."""
        after = text[end : end + 1]
        return (
            not after.isalnum()
            or _BIC.match(text, end) is not None
            or (after.islower() and text[end - 1].isdigit() and not text[end : end + 2].isupper())
        )

    def _size(self, text: str) -> int | None:
        left = LENGTHS.get(text[:2].upper(), 0)
        for place, sign in enumerate(text):
            left -= sign.isalnum()
            if left == 0:
                return place + 1 if mod_97(text[: place + 1]) else None
        return None


IBAN = Iban()
