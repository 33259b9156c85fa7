"""Cursors of the trail stay valid across releases, and belong to one key and one filter."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from gateway.audit.cursor import CursorPosition, seal, unseal
from gateway.errors import InvalidRequest
from gateway.storage.pagination import decode_cursor, encode_cursor

KEY, FILTER = b"k" * 32, "[('subject', 'u-1')]"
PLACE = CursorPosition(datetime(2026, 3, 4, 5, 6, 7, 891234, tzinfo=UTC), UUID("0190c0de-0000-7000-8000-00000000abcd"))
GIVEN = "AAZMK8cZRyIBkMDeAABwAIAAAAAAAKvNV26Wl7H-aas6qI1i9KiWVLRqI5cpu8wbyrpr-Hqk2E0"
"""A cursor of the first release for that place."""


def read(cursor: str, key: bytes = KEY, filter_text: str = FILTER) -> CursorPosition | None:
    return decode_cursor(cursor, lambda sealed: unseal(key, sealed, filter_text))


def test_a_cursor_of_an_earlier_release_still_leads_to_its_place() -> None:
    assert read(GIVEN) == PLACE
    assert encode_cursor(seal(KEY, PLACE, FILTER)) == GIVEN


@pytest.mark.parametrize(
    ("cursor", "key", "filter_text"),
    [
        (GIVEN, b"x" * 32, FILTER),
        (GIVEN, KEY, "[('subject', 'u-2')]"),
        (GIVEN[:-2], KEY, FILTER),
        (GIVEN + "AAAA", KEY, FILTER),
        ("B" + GIVEN[1:], KEY, FILTER),
        ("", KEY, FILTER),
    ],
    ids=["another key", "another filter", "cut", "longer", "changed", "empty"],
)
def test_any_other_cursor_is_refused(cursor: str, key: bytes, filter_text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(cursor, key, filter_text)
    assert refused.value.code == "invalid_cursor"
