from __future__ import annotations

import re

import pytest

from engine.requests import Grammar
from engine.text.grammar import GrammarCompiler
from engine.text.regex_classes import ascii_classes
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer

ARABIC_DIGIT, ACCENTED, WIDE_SPACE = "٣", "é", "\u3000"


def accepts(pattern: str, text: str) -> bool:
    matcher = GrammarCompiler(ByteTokenizer()).compile(Grammar("regex", pattern))
    return all(matcher._matcher.consume_token(token) for token in (*text.encode(), EOS))


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        (r"\d{2}", ("42",), ("4" + ARABIC_DIGIT,)),
        (r"\w+", ("a_9",), (ACCENTED,)),
        (r"a\sb", ("a b", "a\tb"), ("a" + WIDE_SPACE + "b",)),
        (r"[\d.]+", ("1.5",), (ARABIC_DIGIT, "a")),
        (r"[^\d]+", ("ab" + ARABIC_DIGIT,), ("1",)),
        (r"[\w-]+", ("a-b",), (ACCENTED,)),
        (r"[a\D]", ("a", "b", ARABIC_DIGIT), ("1",)),
        (r"\D\W\S", ("a.c", ARABIC_DIGIT + ACCENTED + "x"), ("1.c", "aac", "a. ")),
        (r"\\d", (r"\d",), ("1",)),
        (r"\\\d", (r"\1",), (r"\d",)),
        (r"[\\d]+", ("\\d",), ("1",)),
        (r"\.\-\[\d\]", (".-[7]",), (".-[a]",)),
    ],
)
def test_classes_are_ascii_and_everything_else_means_what_it_did(
    pattern: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    assert [text for text in taken if not accepts(pattern, text)] == []
    assert [text for text in refused if accepts(pattern, text)] == []


def test_the_written_out_classes_are_pythons_ascii_ones() -> None:
    for escape in "dws":
        plain, opposite = ascii_classes("\\" + escape), ascii_classes("\\" + escape.upper())
        for code in range(0x250):
            character = chr(code)
            known = re.fullmatch("\\" + escape, character, re.ASCII) is not None
            assert (re.fullmatch(plain, character) is not None) is known
            assert (re.fullmatch(opposite, character) is not None) is not known
