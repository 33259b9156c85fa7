"""Payment cards (ISO/IEC 7812): a known issuer, a length that it uses, and Luhn."""

from __future__ import annotations

import re

from gateway.guardrails.detectors.checksums import luhn
from gateway.guardrails.detectors.form import form

NAME = "payment"


def is_card(text: str) -> bool:
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


def _same_between(text: str) -> bool:
    """Groups with the same separator, and a card."""
    return len(set(text) - set("0123456789")) == 1 and is_card(text)


def _over_lines(text: str) -> bool:
    """The same separator but for one place where the line was broken, or a break with the same marks at each."""
    check_deadline = [signs for signs in _DIGITS.split(text) if signs]
    plain = {signs for signs in check_deadline if "\n" not in signs}
    broken = [signs for signs in check_deadline if "\n" in signs]
    same = len(plain) == 1 if len(broken) == 1 else not plain and len(set(broken)) == 1
    return same and is_card(text)


_BETWEEN = r"[ \n._/-]"
_FOUR = rf"(?<![0-9]{{4}}{_BETWEEN})[2-6][0-9]{{3}}(?:{_BETWEEN}[0-9]{{4}}){{3}}(?!{_BETWEEN}[0-9]{{4}}(?![0-9A-Za-z]))"
_DIGITS = re.compile("[0-9]+")
_BREAK = r"(?: ?[-\\])?\n(?:> ?(?:> ?)?|// ?|[*|] ?)?"
"""A line break with the dash or backslash before it and the marks of a quotation or a comment behind it."""
_WRAPPED = _FOUR.replace(rf"(?:{_BETWEEN}[0-9]{{4}}){{3}}", rf"(?:(?:[ ._/-]|{_BREAK})[0-9]{{4}}){{3}}")
_LISTED = r"(?:[\"'],[ \n]?[\"']|[\"'] [\"'])"
_FOUR_LISTED = (
    rf"(?<![0-9]{{4}}[\"'],[\"'])(?<![0-9]{{4}}[\"'],[ \n][\"'])"
    rf"[2-6][0-9]{{3}}(?:{_LISTED}[0-9]{{4}}){{3}}(?!{_LISTED}[0-9])"
)
"""Four texts of a list, and no more than four."""
_END = r"(?!(?!(?:EUR|USD|GBP|MXN|COP|ARS|CLP|PEN|L)(?![0-9A-Za-z]))[0-9A-ZÑ])"
"""A currency may touch it.

Decimals may follow (`.0`, `,00 €`): no amount has fourteen digits before them, and tables write cards so."""
CARDS = (
    form("card", NAME, "d14 d15 d16", "[2-6][0-9]{13,15}", is_card, end=_END),
    form("card", NAME, "d4", _FOUR, _same_between),
    form("card", NAME, "d4", _WRAPPED, _over_lines),
    form("card", NAME, "d4", _FOUR_LISTED, is_card),
    form("card", NAME, "d1", r"(?<![,.])[2-6](?:,[0-9]{3}){5}(?![,.][0-9])", is_card, certain=False),
    form("card", NAME, "a1", r"[Bb](?<=%[Bb])[2-6][0-9]{13,15}(?=\^)", is_card),  # track 1 of the magnetic stripe
    form("card", NAME, "d4", rf"3[0-9]{{3}}{_BETWEEN}[0-9]{{6}}{_BETWEEN}[0-9]{{4,5}}", _same_between),
)
