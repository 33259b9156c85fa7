"""The end of a batch, and how it goes on after an answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.batches.values import LineAnswer, Status

MAX_ATTEMPTS = 5
"""Times that a line is started: its process may die under it, and what it needs may be away."""
DEFAULT_PAUSE_S, LONGEST_PAUSE_S = 5.0, 900.0
SOON_S = 120.0
RESERVE = 4
"""A batch leaves one part in so many of its caller's shorter rate limits to what the caller does meanwhile."""
TRANSIENT = frozenset({500, 502, 503})
AWAY = frozenset(
    {
        "audit_unavailable",
        "database_unavailable",
        "engine_unavailable",
        "gateway_stopping",
        "idp_unavailable",
        "limits_unavailable",
        "model_loading",
        "overloaded",
        "policy_unavailable",
    }
)
"""Codes of 503 that say nothing about the line: what everybody needs is away, and its return is waited for."""
_PIECES = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def end_of(status: Status, *, expired: bool, waiting: int, running: int) -> Status | None:
    """The status in which a batch ends now; None while it goes on."""
    if status == "cancelling":
        return "cancelled" if running == 0 else None
    if status == "in_progress":
        if waiting + running == 0:
            return "completed"
        return "expired" if expired else None
    if status == "validating":
        return "expired" if expired else None
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a line after an answer, and of its batch."""

    line: Literal["done", "failed", "again"]
    pause_s: float = 0.0
    """How long no line of the batch is started."""
    counts: bool = True
    """Whether the attempt counts: waiting for a limit is no attempt."""
    refused: bool = False
    """The caller may not call any more: the batch fails."""


def verdict_of(answer: LineAnswer, attempts: int) -> Verdict:
    if answer.status == 429 or (answer.status == 503 and answer.code in AWAY):
        return Verdict("again", _retry_after_s(answer.headers), counts=False)
    if answer.status in TRANSIENT and attempts < MAX_ATTEMPTS:
        return Verdict("again", min(_retry_after_s(answer.headers) * 2 ** (attempts - 1), LONGEST_PAUSE_S))
    if answer.status == 401:
        return Verdict("failed", refused=True)
    if answer.status == 200:
        return Verdict("done", _reserve_s(answer.headers))
    return Verdict("failed", _reserve_s(answer.headers))


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after", DEFAULT_PAUSE_S))
    except ValueError:
        seconds = DEFAULT_PAUSE_S
    return min(max(seconds, 1.0), LONGEST_PAUSE_S)


def _reserve_s(headers: Mapping[str, str]) -> float:
    """Until the window of a limit starts anew of which little is left; longer windows are used to their end."""
    pauses = [0.0]
    for kind in ("requests", "tokens"):
        limit, left = (headers.get(f"x-ratelimit-{what}-{kind}", "") for what in ("limit", "remaining"))
        reset_s = duration_s(headers.get(f"x-ratelimit-reset-{kind}", ""))
        if limit.isdigit() and left.isdigit() and int(left) * RESERVE < int(limit) and reset_s <= SOON_S:
            pauses.append(reset_s)
    return max(pauses)


def duration_s(text: str) -> float:
    """Seconds of a duration such as `1m30s`; 0 for anything else."""
    return sum(float(number) * _UNITS[unit] for number, unit in _PIECES.findall(text))
