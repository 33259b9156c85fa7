"""Strict JSON: a decoder that refuses what two parsers could read differently (RFC 7493), and bounds of what it gave.

Knows no bytes and no error type.

What is refused, the reader of the document turns into its own error: a body, a token and a policy speak differently.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn


class Flaw(Enum):
    DUPLICATE_KEY = "a name occurs twice in one object"
    CONSTANT = "NaN and Infinity are not JSON"
    INTEGER_RANGE = "an integer is too long"
    FLOAT_RANGE = "a number is out of range"
    DEPTH = "nested too deeply"
    COUNT = "too many values"


Refuse = Callable[[Flaw, str], Exception]
"""(flaw, the name or number as written) -> the error to raise. What was written may be a secret."""
MAX_DIGITS = 20
"""Signs of an integer that are converted at all: the cost of converting grows with the square of its length."""


def strict_decoder(refuse: Refuse, *, most: int | None = None) -> json.JSONDecoder:
    """Integers lie in [-most - 1, most]; None: any that has at most `MAX_DIGITS` signs."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise refuse(Flaw.DUPLICATE_KEY, name)
        return found

    # Called for every integer of a body, of which a prompt of token ids has 100,000: one test of numbers made before.
    highest = 10**MAX_DIGITS if most is None else most
    lowest, most_digits = -highest - 1, MAX_DIGITS

    def integer(text: str) -> int:
        if len(text) > most_digits or not lowest <= (value := int(text)) <= highest:
            raise refuse(Flaw.INTEGER_RANGE, text)
        return value

    def finite(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise refuse(Flaw.FLOAT_RANGE, text)
        return value

    def constant(word: str) -> NoReturn:
        raise refuse(Flaw.CONSTANT, word)

    return json.JSONDecoder(
        object_pairs_hook=unique, parse_int=integer, parse_float=finite, parse_constant=constant, strict=True
    )


def check_values(
    value: Any, refuse: Refuse, check_text: Callable[[str], None], *, max_depth: int, max_values: int | None = None
) -> None:
    """Bounds: `max_depth` containers inside each other, `max_values` values in all. `check_text` raises for a name or
    string that is not allowed."""
    level, depth, count = [value], 0, 1
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                check_text(item)
            elif isinstance(item, dict | list):
                if depth == max_depth:
                    raise refuse(Flaw.DEPTH, "")
                if isinstance(item, dict):
                    for name in item:
                        check_text(name)
                    below.extend(item.values())
                else:
                    below.extend(item)
        level, depth, count = below, depth + 1, count + len(below)
        if max_values is not None and count > max_values:
            raise refuse(Flaw.COUNT, "")
