"""A page knows whether there is another one, also where it is exactly full."""

from __future__ import annotations

import pytest

from gateway.admin.pagination import page_of


@pytest.mark.parametrize(
    ("rows", "shown", "cursor"),
    [([], [], None), ([1], [1], None), ([1, 2], [1, 2], None), ([1, 2, 3], [1, 2], "2")],
)
def test_a_full_last_page_promises_nothing(rows: list[int], shown: list[int], cursor: str | None) -> None:
    page = page_of(rows, 2, str)
    assert page.rows == shown
    assert page.end == {"has_more": cursor is not None, "next_cursor": cursor}
