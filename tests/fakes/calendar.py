"""A time zone in which it is about noon, so that no day or month ends while a test runs."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo


def noon_zone(now: datetime | None = None) -> str:
    """An IANA name. The signs of `Etc/GMT+5` are those of POSIX: it is five hours behind UTC."""
    ahead = 12 - (now or datetime.now(UTC)).astimezone(UTC).hour
    return f"Etc/GMT{-ahead:+d}" if ahead else "UTC"


def midnight(zone: str) -> str:
    """How ISO 8601 writes midnight there, `T00:00:00-05:00`."""
    offset = datetime.now(UTC).astimezone(ZoneInfo(zone)).strftime("%z")
    return f"T00:00:00{offset[:3]}:{offset[3:]}"
