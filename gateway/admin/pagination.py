"""Pages of the admin API: one row more than asked is read, and tells whether there is a next page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class PageSlice(Generic[Row]):
    rows: Sequence[Row]
    next_cursor: str | None

    @property
    def end(self) -> dict[str, Any]:
        """The fields of `bodies.Page` that lead to the next page."""
        return {"has_more": self.next_cursor is not None, "next_cursor": self.next_cursor}


def page_of(found: Sequence[Row], limit: int, cursor_of: Callable[[Row], str]) -> PageSlice[Row]:
    """`found` holds up to `limit` + 1 rows, `limit` >= 1; the cursor names the last row of the page."""
    rows = found[:limit]
    return PageSlice(rows, cursor_of(rows[-1]) if len(found) > limit else None)
