"""Brings a private store back that died under a running gateway: on its old port, as often as it takes.

Knows servers as `PrivateServer`. The gateway itself needs no telling: it lives through an outage of either store and
finds the port again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.local.child import LocalStoreError
from gateway.local.private_server import PrivateServer

_log = logging.getLogger("esclusa.local")

WATCH_S = 0.25
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Before each restart; the last one before all that follow. A store that were given up would leave API keys and the
admin API refused until somebody restarts the gateway."""
STEADY_S = 60.0
"""A server that has run for so long begins again with the shortest pause."""


class StoreKeeper(Collector):
    """Watches started servers from `start` to `close`; a collector of `esclusa_local_store_*` as well."""

    def __init__(self, servers: Sequence[PrivateServer], *, backoff_s: Sequence[float] = BACKOFF_S) -> None:
        self._servers = tuple(servers)
        self._backoff_s = tuple(backoff_s)
        self._restarts = dict.fromkeys((server.name for server in self._servers), 0)
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(server), name=f"keep {server.name}") for server in self._servers]

    async def close(self) -> None:
        """Returns when no restart is under way any more: only then may the servers be stopped."""
        self._closing.set()
        await asyncio.gather(*self._tasks)

    def restarts(self, name: str) -> int:
        return self._restarts[name]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("esclusa_local_store_up", "1 while the private store runs.", labels=["store"])
        restarts = CounterMetricFamily("esclusa_local_store_restarts", "Private stores brought back.", labels=["store"])
        for server in self._servers:
            up.add_metric([server.name], float(server.running))
            restarts.add_metric([server.name], self._restarts[server.name])
        yield from (up, restarts)

    async def _keep(self, server: PrivateServer) -> None:
        attempt, up_since = 0, time.monotonic()
        while not await self._closed(WATCH_S):
            if server.running:
                if time.monotonic() - up_since > STEADY_S:
                    attempt = 0
                continue
            pause_s = self._backoff_s[min(attempt, len(self._backoff_s) - 1)]
            attempt += 1
            level = logging.ERROR if attempt < len(self._backoff_s) else logging.CRITICAL
            _log.log(level, "the private %s died; restart %d in %g s", server.name, attempt, pause_s)
            if await self._closed(pause_s):
                return
            try:
                await asyncio.to_thread(server.start, port=server.port)
            except (LocalStoreError, OSError) as error:
                _log.error("the private %s cannot be started: %s", server.name, error)
                continue
            up_since = time.monotonic()
            self._restarts[server.name] += 1
            _log.warning("the private %s runs again", server.name)

    async def _closed(self, patience_s: float) -> bool:
        """Waits so long; True as soon as the keeper is being closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._closing.wait()
        return self._closing.is_set()
