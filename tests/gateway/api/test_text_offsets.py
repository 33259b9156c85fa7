"""`text_offset`: the character of the text that holds a token's first byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.text_offsets import TextOffsets


def offsets(*tokens: bytes) -> list[int]:
    counter = TextOffsets()
    return [counter.take(token) for token in tokens]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([b"Hello", b" world", b" of", b" the"], [0, 5, 11, 14]),
        (["É".encode(), b"rase", b" una"], [0, 1, 5]),
        ([b"", b"hola", b"", b"!"], [0, 0, 4, 4]),
        ([b"a\xe6", b"\xbc", b"\xa2", b"b"], [0, 1, 1, 2]),
        (["🚢".encode()[:2], "🚢".encode()[2:] + b"x", b"y"], [0, 0, 2]),
        ([b"\xe6\xbc", b"x"], [0, 1]),
        ([b"\xff", b"\xff", b"a"], [0, 1, 2]),
    ],
    ids=["words", "two bytes", "nothing shown", "parts of one", "half and more", "broken off", "no UTF-8"],
)
def test_a_token_begins_at_the_character_of_its_first_byte(tokens: list[bytes], expected: list[int]) -> None:
    assert offsets(*tokens) == expected


@given(st.text(), st.data())
def test_however_a_text_is_cut_each_offset_is_that_of_its_byte(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    expected = [len(raw[:at].decode("utf-8", "ignore")) for at in [0, *cuts]]
    assert [o for o, part in zip(offsets(*parts), parts, strict=True) if part] == [
        o for o, part in zip(expected, parts, strict=True) if part
    ]
