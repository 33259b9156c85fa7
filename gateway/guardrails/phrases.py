"""Finds attempts to steer a model past its instructions, by the rules of `phrasebook`. Pure.

Rules over plain words (`folding.plain_words`), not a classifier: they catch what is copied from lists and miss what is
new. Therefore a phrase is a hint, never a proof: policy decides whether it is flagged or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.folding import plain_words, undisguised
from gateway.guardrails.phrasebook import LISTS, RULES

NAME = "phrases"
OVERLAP = 512
"""More than the longest phrase: slices of a text overlap by it."""
_GAP = r"(?:[\w@$]{1,20} )"


@dataclass(frozen=True, slots=True)
class Phrase:
    category: str
    pattern: re.Pattern[str]
    telling: frozenset[str]
    """One of these words is in every text that matches."""


def phrase(category: str, rule: str) -> Phrase:
    """Read one rule. Raises `KeyError` for a list that does not exist."""
    parts, places = list[str](), list[list[str]]()
    for part in rule.split():
        if part[0] == "~":
            parts.append(f"{_GAP}{{0,{int(part[1:])}}}")
            continue
        words = [word for item in part.split("|") for word in (LISTS[item[1:-1]].split() if item[0] == "<" else [item])]
        if not any(word.endswith("*") for word in words):
            places.append([max(word.split("_"), key=len) for word in words])
        choice = "|".join(re.escape(word.replace("_", " ")).replace(r"\*", r"\w{0,10}") for word in words)
        parts.append(rf"(?:{choice}) ")
    telling = max(places, key=lambda place: min(map(len, place)))
    return Phrase(category, re.compile(" " + "".join(parts).removesuffix(" ") + "(?= )"), frozenset(telling))


PHRASES = tuple(phrase(category, rule) for category, rules in RULES.items() for rule in rules)
TELLING = frozenset().union(*(known.telling for known in PHRASES))


def count_phrases(text: str, slice_chars: int, check_deadline: Callable[[], None]) -> dict[str, int]:
    """How often each category occurs. Calls `check_deadline` before each slice (it may raise)."""
    parts = [" "]
    for at in range(0, len(text), slice_chars):
        check_deadline()
        part = plain_words(text[at : at + slice_chars])
        parts.append(part.lstrip() if parts[-1].endswith(" ") else part)
    plain = "".join(parts) + " "
    # The second reading is for what the first did not find.
    return _counts(plain, slice_chars, check_deadline) or _counts(
        _undisguised(plain, slice_chars, check_deadline), slice_chars, check_deadline
    )


def _counts(reading: str, slice_chars: int, check_deadline: Callable[[], None]) -> dict[str, int]:
    counts: dict[str, int] = {}
    words = _matched(reading, slice_chars, check_deadline)
    for known in PHRASES:
        if not known.telling.isdisjoint(words):
            found = sum(1 for _ in _matches(known.pattern, reading, slice_chars, check_deadline))
            if found:
                counts[known.category] = counts.get(known.category, 0) + found
    return counts


def _matched(words: str, slice_chars: int, check_deadline: Callable[[], None]) -> set[str]:
    """The telling words among `words`; a word at the end of a slice is whole in the overlap."""
    found: set[str] = set()
    for at in range(0, len(words), slice_chars):
        check_deadline()
        found |= TELLING.intersection(words[at : at + slice_chars + OVERLAP].split())
    return found


def _undisguised(words: str, slice_chars: int, check_deadline: Callable[[], None]) -> str:
    """Read without disguises, in slices that end where a word does; empty where there is none."""
    parts, disguised, at = [], False, 0
    while at < len(words):
        check_deadline()
        end = words.find(" ", at + slice_chars, at + slice_chars + OVERLAP)
        end = at + slice_chars if end < 0 else end
        part = words[at:end]
        read = undisguised(part)
        disguised |= read is not None
        parts.append(read or part)
        at = end
    return "".join(parts) if disguised else ""


def _matches(
    pattern: re.Pattern[str], words: str, slice_chars: int, check_deadline: Callable[[], None]
) -> Iterator[re.Match[str]]:
    free = 0
    for at in range(0, len(words), slice_chars):
        check_deadline()
        stop = min(at + slice_chars, len(words))
        for match in pattern.finditer(words, max(at, free), min(stop + OVERLAP, len(words))):
            if match.start() >= stop:
                break
            free = match.end()
            yield match
