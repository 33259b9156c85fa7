"""What two JSON parsers could read differently is refused, in the words of whoever reads."""

from __future__ import annotations

import pytest

from gateway.documents.strict_json import MAX_DIGITS, Flaw, strict_decoder


class Refused(Exception):
    def __init__(self, flaw: Flaw, written: str) -> None:
        self.flaw, self.written = flaw, written


@pytest.mark.parametrize(
    ("text", "flaw", "written"),
    [
        ('{"a": 1, "b": 2, "a": 3}', Flaw.DUPLICATE_KEY, "a"),
        ('[{"x": {"b": 0, "b": 0}}]', Flaw.DUPLICATE_KEY, "b"),
        ("[NaN]", Flaw.CONSTANT, "NaN"),
        ("-Infinity", Flaw.CONSTANT, "-Infinity"),
        ("1e999", Flaw.FLOAT_RANGE, "1e999"),
        ("9" * (MAX_DIGITS + 1), Flaw.INTEGER_RANGE, "9" * (MAX_DIGITS + 1)),
    ],
)
def test_a_flaw_is_told_with_what_was_written(text: str, flaw: Flaw, written: str) -> None:
    with pytest.raises(Refused) as refused:
        strict_decoder(Refused).decode(text)
    assert (refused.value.flaw, refused.value.written) == (flaw, written)


@pytest.mark.parametrize(("number", "fits"), [(255, True), (256, False), (-256, True), (-257, False)])
def test_integers_may_have_a_bound(number: int, fits: bool) -> None:
    decoder = strict_decoder(Refused, most=255)
    if fits:
        assert decoder.decode(str(number)) == number
    else:
        with pytest.raises(Refused):
            decoder.decode(str(number))


def test_what_is_right_is_read_as_it_is() -> None:
    assert strict_decoder(Refused).decode('{"a": [1, -2.5e3, null, true, "é"]}') == {"a": [1, -2500.0, None, True, "é"]}
