"""YAML with the place of every value, and nothing that people and parsers read differently."""

from __future__ import annotations

import pytest

from gateway.documents.located_yaml import LocatedDocument, Location, read_yaml


class Refused(Exception):
    pass


def read(text: str) -> LocatedDocument:
    return read_yaml(text, lambda message, location: Refused(message, location), max_depth=3, max_values=20)


def test_every_key_and_value_has_its_place() -> None:
    found = read("http:\n  port: 80\n  hosts: [a, b]\n")
    assert found.data == {"http": {"port": 80, "hosts": ["a", "b"]}}
    assert found.key_locations[("http", "port")] == Location(2, 3)
    assert found.locations[("http", "port")] == Location(2, 9)
    assert found.locations[("http", "hosts", 1)] == Location(3, 14)


@pytest.mark.parametrize(
    ("written", "value"),
    [("no", "no"), ("07:00", "07:00"), ("0x10", "0x10"), ("2026-01-31", "2026-01-31"), ("~", None), ("1.5", 1.5),
     ("1e3", 1000.0), ("'1'", "1"), ("TRUE", True), ("-0", 0), ("99999999999999999999", "99999999999999999999")],
)  # fmt: skip
def test_scalars_are_those_of_json(written: str, value: object) -> None:
    assert read(f"a: {written}").data == {"a": value}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "duplicate key `a`", 3),
        ("a: &x 1\nb: *x\n", "anchors and aliases", 1),
        ("a: !!python/name:os.system x\n", "the tag", 1),
        ("a: 1\n---\nb: 2\n", "second document", 2),
        ("a: {b: {c: {d: 1}}}\n", "nested deeper than 3", 1),
        ("a: [" + "1, " * 30 + "1]\n", "more than 20 values", 1),
        ("a:\n  - x\u200by\n", "invisible character U\\+200B", 2),
        ("a: [1\nb: 2\n", "not YAML", 2),
        ("? [a]\n: 1\n", "a key must be plain text", 1),
    ],
)
def test_what_has_no_use_here_is_refused_at_its_place(text: str, message: str, line: int) -> None:
    with pytest.raises(Refused, match=message) as refused:
        read(text)
    assert refused.value.args[1].line == line


def test_an_empty_text_has_no_value() -> None:
    assert read("# only a comment\n") == LocatedDocument(None, {}, {})
