"""Bank accounts and payment cards: IBAN (ISO 13616) and card numbers (ISO/IEC 7812)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.guardrails.checksums import luhn, mod_97
from gateway.guardrails.detector import Form
from gateway.guardrails.spans import Span

NAME = "payment"
IBAN_LENGTHS = {
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
_IBAN = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{2}[0-9]{2}(?:[0-9A-Za-z]{11,30}|(?:[ -]?[0-9A-Z]){11,30})")


@dataclass(frozen=True, slots=True)
class Iban:
    """In one piece or in groups of four; the country says how long it is, so what follows is never part of it."""

    category: str = "iban"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:  # noqa: ARG002
        match = _IBAN.search(text, start, end)
        while match is not None:
            begin, size = match.start(), self._size(match[0])
            if size is not None and not text[begin + size : begin + size + 1].isalnum():
                yield Span(begin, begin + size, self.category, self.detector)
            match = _IBAN.search(text, begin + 1, end)

    def _size(self, text: str) -> int | None:
        left = IBAN_LENGTHS.get(text[:2].upper(), 0)
        for place, sign in enumerate(text):
            left -= sign.isalnum()
            if left == 0:
                return place + 1 if mod_97(text[: place + 1]) else None
        return None


def _card(text: str) -> bool:
    """A known issuer, a length that it uses, and Luhn."""
    digits = "".join([sign for sign in text if sign.isdigit()])
    two, four, size = int(digits[:2]), int(digits[:4]), len(digits)
    if two in (34, 37):
        known = size == 15
    elif two in (36, 38, 39) or 3000 <= four <= 3059:
        known = size == 14
    else:
        known = size == 16 and (
            digits[0] == "4"
            or 51 <= two <= 55
            or 2221 <= four <= 2720
            or two in (35, 65)
            or 6440 <= four <= 6499
            or four in (6011, 6062, 6042, 5067, 5895, 6363, 5018, 5020, 6304)
        )
    return known and luhn(digits)


PAYMENT = (
    Iban(),
    Form("card", NAME, re.compile(r"(?<![\w.\-])[2-6][0-9]{13,15}(?![\w]|[.\-][0-9])"), _card),
    Form(
        "card",
        NAME,
        re.compile(
            r"(?<![\w.])(?<![0-9]{4}[ .-])[2-6][0-9]{3}([ .-])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?!\w|[ .-][0-9]{4}(?!\w))"
        ),
        _card,
    ),
    Form("card", NAME, re.compile(r"(?<![\w.])3[0-9]{3}([ -])[0-9]{6}\1[0-9]{4,5}(?!\w)"), _card),
)
