"""How long a test waits for what must happen, before it says that it never will.

Not a measure of speed: a busy machine may take seconds for what takes milliseconds elsewhere. A test that shows a bound
lets the fault last longer than this guard, so that without the bound the guard ends it.
"""

from __future__ import annotations

import asyncio

HANG_S = 60.0


def hang_guard() -> asyncio.Timeout:
    """Ends the block with `TimeoutError` when what it waits for does not come."""
    return asyncio.timeout(HANG_S)
