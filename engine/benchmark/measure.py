"""The figures reported for one system, computed from token times. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trace:
    """Arrival times of one request's tokens, in seconds on one monotonic clock.

    `tokens` has one time per token; several tokens that came together share one.
    """

    submitted_s: float
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """One system's figures. None where the system cannot tell."""

    system: str
    output_tokens: int
    seconds: float
    output_tokens_per_s: float
    single_stream_tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    itl_p99_s: float | None = None
    kv_waste_fraction: float | None = None
    peak_rss_bytes: int | None = None
    host_ms_per_step: float | None = None
    ready_s: float | None = None
    note: str = ""
    """Notes for a fair comparison (dtype, version, preloads)."""


def percentile(values: Sequence[float], q: float) -> float | None:
    """Nearest-rank percentile, `q` in (0, 100]; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)]


def first_token_times(traces: Sequence[Trace]) -> list[float]:
    return [trace.tokens[0] - trace.submitted_s for trace in traces if trace.tokens]


def inter_token_times(traces: Sequence[Trace]) -> list[float]:
    return [later - earlier for trace in traces for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)]


def gaps_within(traces: Sequence[Trace], begin_s: float, end_s: float) -> list[float]:
    """Times between two tokens of which some part lies in (begin_s, end_s)."""
    return [
        later - earlier
        for trace in traces
        for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)
        if later > begin_s and earlier < end_s
    ]


def crowded_gaps(traces: Sequence[Trace]) -> list[float]:
    """Times between tokens while all requests answer: after the last first token, before the first last one."""
    if not traces or any(not trace.tokens for trace in traces):
        return []
    begin_s, end_s = max(trace.tokens[0] for trace in traces), min(trace.tokens[-1] for trace in traces)
    return [
        later - earlier
        for trace in traces
        for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)
        if earlier >= begin_s and later <= end_s
    ]


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
