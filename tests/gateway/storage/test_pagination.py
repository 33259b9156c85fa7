"""A page knows whether there is another one, also where it is exactly full; its cursor is the last row's position."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.storage.pagination import decode_cursor, encode_cursor, page_of


def named(row: int) -> bytes:
    return str(row).encode()


@pytest.mark.parametrize(
    ("rows", "shown", "last"),
    [([], [], None), ([1], [1], None), ([1, 2], [1, 2], None), ([1, 2, 3], [1, 2], b"2")],
)
def test_a_full_last_page_promises_nothing(rows: list[int], shown: list[int], last: bytes | None) -> None:
    page = page_of(rows, 2, named)
    assert page.rows == shown
    assert page.end == {"has_more": last is not None, "next_cursor": None if last is None else encode_cursor(last)}


@pytest.mark.parametrize("position", [b"", b"v3", bytes(range(256)), "señal".encode()])
def test_a_cursor_leads_back_to_its_position(position: bytes) -> None:
    assert decode_cursor(encode_cursor(position), bytes) == position


def test_without_a_cursor_there_is_no_position() -> None:
    assert decode_cursor(None, bytes) is None


@pytest.mark.parametrize("cursor", ["a", "%%%", "\U0001f642", "aa+/", encode_cursor(b"\xff")])
def test_what_no_query_gave_is_refused_and_not_guessed(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_cursor(cursor, lambda position: position.decode())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_cursor", "cursor")
