"""Asks Postgres now and then, so that its state and clock are known without asking. Knows no tables."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.storage.postgres import CONNECTION_FAILURES, connect_raw

INTERVAL_S = 5.0
PATIENCE_S = 2.0


class PostgresWatch:
    """One connection of its own: a pool that is used up says nothing about the server. `run` until cancelled."""

    def __init__(self, database_url: str, *, interval_s: float = INTERVAL_S, patience_s: float = PATIENCE_S) -> None:
        self._url, self._interval_s, self._patience_s = database_url, interval_s, patience_s
        self.state: Literal["unknown", "ready", "away"] = "unknown"
        self.clock_skew_s: float | None = None
        """How far the server's clock is ahead of ours, as of the last answer."""

    async def run(self) -> None:
        connection: Any = None
        try:
            while True:
                try:
                    async with asyncio.timeout(self._patience_s):
                        if connection is None:
                            connection = await connect_raw(
                                self._url, timeout_s=self._patience_s, application_name="esclusa-watch"
                            )
                        self.clock_skew_s = await measure_skew(connection)
                    self.state = "ready"
                except CONNECTION_FAILURES:
                    self.state = "away"
                    if connection is not None:
                        connection.terminate()
                        connection = None
                await asyncio.sleep(self._interval_s)
        finally:
            if connection is not None:
                with contextlib.suppress(*CONNECTION_FAILURES):
                    connection.terminate()

    def status(self) -> dict[str, object]:
        """For metrics."""
        fields: dict[str, object] = {"up": self.state == "ready"}
        return fields if self.clock_skew_s is None else {**fields, "clock_skew_s": round(self.clock_skew_s, 3)}


async def measure_skew(connection: Any) -> float:
    """Seconds that the server's clock is ahead of ours, half a round trip taken off."""
    before = datetime.now(UTC)
    theirs: datetime = await connection.fetchval("SELECT clock_timestamp()")
    after = datetime.now(UTC)
    return (theirs - (before + (after - before) / 2)).total_seconds()
