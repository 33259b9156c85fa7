"""Pages of every list: one row more than asked is read, and tells whether there is a next page. Pure.

A cursor is the position of a page's last row as base64url. Callers pass it on and read nothing from it; the audit trail
seals its positions before (`gateway.audit.cursor`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.errors import InvalidRequest

Row = TypeVar("Row")
Position = TypeVar("Position")


@dataclass(frozen=True, slots=True)
class PageSlice(Generic[Row]):
    rows: Sequence[Row]
    next_cursor: str | None

    @property
    def end(self) -> dict[str, Any]:
        """The fields of a page's JSON that lead to the next page."""
        return {"has_more": self.next_cursor is not None, "next_cursor": self.next_cursor}


def page_of(found: Sequence[Row], limit: int, position_of: Callable[[Row], bytes]) -> PageSlice[Row]:
    """`found` holds up to `limit` + 1 rows, `limit` >= 1; the cursor names the last row of the page."""
    rows = found[:limit]
    return PageSlice(rows, encode_cursor(position_of(rows[-1])) if len(found) > limit else None)


def encode_cursor(position: bytes) -> str:
    return base64.urlsafe_b64encode(position).rstrip(b"=").decode()


def decode_cursor(cursor: str | None, read: Callable[[bytes], Position]) -> Position | None:
    """`read` of the position, or None without a cursor. Raises `InvalidRequest` (400 `invalid_cursor`), also for the
    `ValueError` with which `read` refuses."""
    if cursor is None:
        return None
    try:
        return read(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except ValueError:  # binascii.Error and UnicodeDecodeError are such
        raise InvalidRequest(
            "The cursor is not one this query gave.",
            code="invalid_cursor",
            param="cursor",
            hint="repeat the query with the same filters and the `next_cursor` of its last page, or without a cursor",
        ) from None
