"""A list as CSV (RFC 4180) for those who open it in a spreadsheet. Pure.

A cell that a spreadsheet would run as a formula is given an apostrophe in front: subjects and names come from outside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

MEDIA_TYPE = "text/csv"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def wants_csv(accept: str) -> bool:
    """Whether `Accept` names CSV, and JSON not before it."""
    kinds = [part.split(";")[0].strip() for part in accept.split(",")]
    json_at = kinds.index("application/json") if "application/json" in kinds else len(kinds)
    return MEDIA_TYPE in kinds and kinds.index(MEDIA_TYPE) < json_at


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    harmless = isinstance(value, int | float) or not text.startswith(_FORMULA)
    return text if harmless else f"'{text}"
