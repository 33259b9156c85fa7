"""What two JSON parsers could read differently is refused, in the words of whoever reads."""

from __future__ import annotations

import pytest

from gateway.documents.strict_json import MAX_DIGITS, Flaw, check_values, strict_decoder


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


def plain(text: str) -> None:
    if "\x00" in text:
        raise Refused(Flaw.CONSTANT, text)


@pytest.mark.parametrize(("depth", "fits"), [(3, True), (4, False)])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a": ', "}")], ids=["lists", "objects"])
def test_values_may_be_nested_as_deep_as_said(depth: int, fits: bool, before: str, after: str) -> None:
    value = strict_decoder(Refused).decode(before * depth + "1" + after * depth)
    if fits:
        check_values(value, Refused, plain, max_depth=3)
    else:
        with pytest.raises(Refused) as refused:
            check_values(value, Refused, plain, max_depth=3)
        assert refused.value.flaw is Flaw.DEPTH


@pytest.mark.parametrize(("bound", "fits"), [(6, True), (5, False)])
def test_there_may_be_as_many_values_as_said(bound: int, fits: bool) -> None:
    value = {"a": [1, 2, {}], "b": None}
    if fits:
        check_values(value, Refused, plain, max_depth=9, max_values=bound)
    else:
        with pytest.raises(Refused) as refused:
            check_values(value, Refused, plain, max_depth=9, max_values=bound)
        assert refused.value.flaw is Flaw.COUNT


@pytest.mark.parametrize("value", ["\x00", ["a", "\x00"], {"\x00": 1}, {"a": [{"b": "\x00"}]}])
def test_every_name_and_string_is_shown_to_the_reader(value: object) -> None:
    with pytest.raises(Refused) as refused:
        check_values(value, Refused, plain, max_depth=9)
    assert refused.value.written == "\x00"
