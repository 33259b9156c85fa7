"""Every way to write "JSON in UTF-8" is understood, and nothing else."""

from __future__ import annotations

import pytest

from gateway.api.http.media_type import is_json


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"Application/JSON",
        b"application/json;",
        b"application/json; charset=utf-8",
        b"application/json;charset=UTF-8",
        b'application/json; charset="utf-8"',
        b"application/json; charset=utf8",
        b'application/json ; CharSet="UTF\\-8" ',
        b"application/json; odata.metadata=minimal; charset=utf-8; x=1",
        b'application/json; profile="a;charset=utf-16"',
    ],
)
def test_json_in_utf_8_is_known_however_it_is_written(value: bytes) -> None:
    assert is_json(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"text/plain",
        b"application/vnd.api+json",
        b"application/json; charset=utf-16",
        b"application/json; charset=latin1",
        b'application/json; charset="utf-8',
        b"application/json; charset=utf-8; charset=utf-16",
        b"application/json; charset",
        b"application/json, text/plain",
        b"application/json; =utf-8",
        b"application/json; a=" + b"b" * 300,
    ],
)
def test_anything_else_is_something_else(value: bytes) -> None:
    assert not is_json(value)
