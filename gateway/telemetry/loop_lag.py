"""Event-loop lag: how late timers run, the first sign that something blocks the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.5


async def watch_loop_lag(report: Callable[[float], None]) -> None:
    """Until cancelled. `report` gets seconds of delay beyond the interval."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        report(max(0.0, loop.time() - due))
