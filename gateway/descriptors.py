"""File descriptors: how many this process may open, and how many connections and requests fit into them.

Each caller's connection takes one, each request that an upstream answers takes a second, the stores and the gateway's
own files take the rest. What does not fit is refused with 503 before it fails half-way.
"""

from __future__ import annotations

import errno
import resource
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import Unavailable

OWN_FILES = 64
"""Listeners, logs, spool segments, model files, pipes; and connections that are only accepted to be refused."""
LISTENERS = 8
"""Connections to the stores outside the pool: LISTEN, COPY, Valkey."""
ENOUGH = 65_536
_SHORTAGES = {errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """The admission that fits below `limit`; `lowered` when that is less than configured."""

    limit: int
    needed: int
    connections: int
    requests: int
    lowered: bool

    def __str__(self) -> str:
        if not self.lowered:
            return f"{self.limit} file descriptors, {self.needed} needed"
        fits = f"{self.connections} connections and {self.requests} requests at once fit"
        return f"{self.limit} file descriptors where {self.needed} are needed: {fits}"


def plan_descriptors(
    limit: int, *, connections: int, requests: int, upstreams: int, database_pool: int
) -> DescriptorPlan:
    """`upstreams`: most connections to all upstreams together; `database_pool` may double under load."""
    fixed = OWN_FILES + LISTENERS + 2 * database_pool
    needed = fixed + connections + min(upstreams, requests)
    if limit >= needed:
        return DescriptorPlan(limit, needed, connections, requests, lowered=False)
    room = max(2, limit - fixed)
    # Twice as many connections as requests, so that the next ones can be told to come back.
    fitting = min(requests, connections, room // 3 if upstreams else room // 2)
    upstream = min(upstreams, fitting)
    return DescriptorPlan(limit, needed, max(1, min(connections, room - upstream)), max(1, fitting), lowered=True)


def raise_limit(wanted: int = ENOUGH) -> int:
    """Raise the soft limit as far as the hard one allows, at most to `wanted`; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):
            return soft  # a sandbox that forbids it
        return target
    return wanted if soft == resource.RLIM_INFINITY else soft


def measure(plan: DescriptorPlan) -> dict[str, object]:
    """For metrics: what is open now beside what may be."""
    folder = Path("/proc/self/fd")
    fields: dict[str, object] = {
        "limit": plan.limit,
        "needed": plan.needed,
        "max_connections": plan.connections,
        "max_requests": plan.requests,
    }
    return {**fields, "open": sum(1 for _ in folder.iterdir())} if folder.is_dir() else fields


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, says that no descriptor is left."""
    for _ in range(8):
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def no_descriptor() -> Unavailable:
    return Unavailable(
        "The gateway has no file descriptor left for this request.",
        code="overloaded",
        hint="try again; an operator can raise the limit of open files",
        retry_after_s=1,
        detail="EMFILE",
    )
