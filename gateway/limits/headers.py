"""`x-ratelimit-*` and `retry-after` from a verdict or a reservation. Pure."""

from __future__ import annotations

import re
from math import ceil

from gateway.flow.values import Headroom, LimitVerdict, Reservation

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(\d+)s")


def ratelimit_headers(result: LimitVerdict | Reservation) -> dict[str, str]:
    """Headers in OpenAI's names; a kind that nothing limits is left out.

    Resets are durations in OpenAI's form (`1s`, `6m0s`). `retry-after` (whole seconds, at least 1) only on a refusal.
    `x-esclusa-limits: degraded` when the counters' store was away.
    """
    headers = _headroom(result.headroom)
    if isinstance(result, LimitVerdict) and not result.allowed and result.retry_after_s is not None:
        headers["retry-after"] = str(max(1, ceil(result.retry_after_s)))
    if result.degraded:
        headers["x-esclusa-limits"] = "degraded"
    if isinstance(result, Reservation) and result.warnings:
        headers["x-esclusa-limit-warning"] = "; ".join(result.warnings)
    return headers


def duration_text(seconds: float) -> str:
    """`59s`, `6m0s`, `1h0m5s`; parts of a second are rounded up, so that waiting that long is enough."""
    whole = max(0, ceil(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"


def duration_s(text: str) -> int:
    """The seconds of a `duration_text`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("not a duration")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _headroom(room: Headroom) -> dict[str, str]:
    headers: dict[str, str] = {}
    if room.limit_requests is not None:
        headers["x-ratelimit-limit-requests"] = str(room.limit_requests)
        headers["x-ratelimit-remaining-requests"] = str(max(0, room.remaining_requests or 0))
        headers["x-ratelimit-reset-requests"] = duration_text(room.reset_requests_s or 0)
    if room.limit_tokens is not None:
        headers["x-ratelimit-limit-tokens"] = str(room.limit_tokens)
        headers["x-ratelimit-remaining-tokens"] = str(max(0, room.remaining_tokens or 0))
        headers["x-ratelimit-reset-tokens"] = duration_text(room.reset_tokens_s or 0)
    return headers
