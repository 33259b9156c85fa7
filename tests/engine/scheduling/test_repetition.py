# ruff: noqa: E501 - one text a line
"""Loops of any period are found in time, and what people write on purpose is never taken for one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.repetition import GRAM, LEAST_PERIODS, LEAST_RUN, LONGEST_PERIOD, RepetitionGuard


def ends_at(tokens: list[int], prompt: int = 0) -> int | None:
    """After how many tokens the guard calls it a loop, fed one by one."""
    guard = RepetitionGuard()
    for count in range(prompt + 1, len(tokens) + 1):
        if guard.loops(tokens[:count], prompt):
            return count - prompt
    return None


@pytest.mark.parametrize("period", [1, 2, 5, 17, 32, 33, 64, 100, 333, 1000])
def test_a_block_that_comes_again_and_again_is_a_loop_whatever_its_length(period: int) -> None:
    lead = [10_000 + number for number in range(50)]
    block = [(7 * number + 3) % 1009 for number in range(period)]
    tokens = lead + list(itertools.islice(itertools.cycle(block), 6 * period + 400))
    found = ends_at(tokens)
    assert found is not None
    least = max(LEAST_RUN, LEAST_PERIODS * period)
    assert 50 + least <= found <= 50 + period + least + GRAM


def test_a_period_beyond_the_window_is_not_looked_for() -> None:
    block = list(range(LONGEST_PERIOD + 10))
    assert ends_at(block * 5) is None


def test_the_prompt_is_not_looked_at() -> None:
    assert ends_at([5] * 500 + [1, 2, 3], prompt=500) is None


def words(text: str) -> list[int]:
    """Signs as tokens: more of them than a tokenizer makes, so that this is the harder test."""
    return [ord(sign) for sign in text]


ORDINARY = {
    "a table": "| city | people |\n|------|--------|\n" + "".join(f"| Lima {n} | {n * 9137 % 100000} |\n" for n in range(40)),
    "a row of dashes": "-" * 120 + "\ntitle\n" + "=" * 120,
    "a matrix of zeros": "[" + ", ".join(["[0, 0, 0, 0, 0, 0, 0, 0]"] * 8) + "]",
    "counting": ", ".join(map(str, range(400))),
    "code": "".join(f"    if x == {n}:\n        return values[{n}]\n" for n in range(60)),
    "a song": "".join(f"Verse {n}: {'la ' * n}\nAlé, alé, alé, que el barco pasa la esclusa.\n" for n in range(1, 25)),
    "JSON rows": "[" + ",".join(f'{{"id": {n}, "name": "user{n}", "active": true}}' for n in range(60)) + "]",
    "a list of alike sentences": "".join(f"{n}. Open the gate number {n} and wait.\n" for n in range(1, 60)),
    "DNA": "ACGT" * 30 + "TTGACA" * 12 + "GATTACA" * 15,
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_texts_are_no_loops(name: str) -> None:
    assert ends_at(words(ORDINARY[name])) is None


def test_a_phrase_without_end_is_one() -> None:
    assert ends_at(words("Una esclusa es una obra. " + "Es una obra que sirve para navegar. " * 60)) is not None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=400), st.lists(st.integers(1, 9), max_size=5))
def test_how_often_it_is_asked_does_not_matter(tokens: list[int], cuts: list[int]) -> None:
    whole = ends_at(tokens)
    guard, found, at = RepetitionGuard(), None, 0
    for step in itertools.cycle(cuts or [3]):
        if at >= len(tokens):
            break
        at = min(len(tokens), at + step)
        if guard.loops(tokens[:at], 0):
            found = at
            break
    assert (found is None) == (whole is None)
