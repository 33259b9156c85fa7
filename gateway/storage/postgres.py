"""Connections to Postgres: the pooled async engine and a LISTEN connection that comes back by itself.

Knows drivers and timeouts; knows no table. One SQL dialect (`postgresql+asyncpg`), so no other is offered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import orjson
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.storage.dsn import driver_dsn, driver_numbers, parse_database_url, require_files

CONNECTION_FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a query sent between the server's farewell and the end of the connection
)
"""What a plain connection raises when the server is away or leaves."""
NotificationHandler = Callable[[str, str | None], Awaitable[None]]
"""Called with (channel, payload); payload None after every (re)connection: notifications may have been missed."""


def make_engine(
    database_url: str,
    *,
    pool_size: int = 10,
    statement_timeout_s: float | None = 30.0,
    connect_timeout_s: float = 5.0,
    application_name: str = "esclusa",
) -> AsyncEngine:
    """A pooled engine; opens nothing before first use. Raises `ConfigError` for a URL it cannot use.

    `command_timeout` is what ends a wait for a server that is frozen rather than dead.
    """
    server_settings = {"application_name": application_name, "timezone": "UTC"}
    if statement_timeout_s is not None:
        server_settings["statement_timeout"] = str(int(statement_timeout_s * 1000))
    url = parse_database_url(database_url)
    require_files(url)
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=connect_timeout_s,
        pool_pre_ping=True,
        pool_recycle=1800,
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
        async_creator=_creator(
            url,
            timeout=connect_timeout_s,
            command_timeout=None if statement_timeout_s is None else statement_timeout_s + 1.0,
            server_settings=server_settings,
        ),
    )


def make_single_engine(database_url: str) -> AsyncEngine:
    """An engine without a pool and without time limits, for migrations."""
    url = parse_database_url(database_url)
    require_files(url)
    return create_async_engine(url, poolclass=NullPool, async_creator=_creator(url))


async def connect_raw(database_url: str, *, timeout_s: float = 5.0, application_name: str = "esclusa") -> Any:
    """One plain asyncpg connection, for COPY, LISTEN and advisory locks."""
    return await _connect(
        parse_database_url(database_url),
        timeout=timeout_s,
        server_settings={"application_name": application_name, "timezone": "UTC"},
    )


def _creator(url: URL, **options: Any) -> Callable[..., Awaitable[Any]]:
    """The pool's way to a new connection. What SQLAlchemy makes of the URL is not used: it knows no `sslmode`."""

    async def connect(**_: Any) -> Any:
        return await _connect(url, **options)

    return connect


async def _connect(url: URL, **options: Any) -> Any:
    return await asyncpg.connect(dsn=driver_dsn(url), **driver_numbers(url), **options)


class Listener:
    """LISTEN on some channels for as long as `run` runs, through restarts of the server.

    Every (re)connection calls the handler once per channel with payload None, because what was sent in between is
    gone: the handler then reads the present state instead.
    """

    def __init__(
        self,
        database_url: str,
        channels: Sequence[str],
        handler: NotificationHandler,
        *,
        heartbeat_s: float = 10.0,
        max_backoff_s: float = 5.0,
    ) -> None:
        self._url = database_url
        self._channels = tuple(channels)
        self._handler = handler
        self._heartbeat_s = heartbeat_s
        self._max_backoff_s = max_backoff_s
        self.connected = False

    async def run(self) -> None:
        """Until cancelled. Errors of the handler are the handler's: they end the run."""
        backoff = 0.1
        while True:
            connection: Any = None
            try:
                connection = await connect_raw(self._url, application_name="esclusa-listen")
                queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

                def arrived(
                    _connection: Any,
                    _pid: int,
                    channel: str,
                    payload: str,
                    queue: asyncio.Queue[tuple[str, str]] = queue,
                ) -> None:
                    queue.put_nowait((channel, payload))

                for channel in self._channels:
                    await connection.add_listener(channel, arrived)
                self.connected, backoff = True, 0.1
            except asyncio.CancelledError:
                await self._discard(connection)
                raise
            except CONNECTION_FAILURES:
                self.connected = False
                await self._discard(connection)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, self._max_backoff_s)
                continue
            try:
                for channel in self._channels:
                    await self._handler(channel, None)
                await self._pump(connection, queue)
            finally:
                self.connected = False
                await self._discard(connection)

    async def _pump(self, connection: Any, queue: asyncio.Queue[tuple[str, str]]) -> None:
        while True:
            try:
                # Not `wait_for`: before Python 3.12 it can swallow a cancellation that comes with an item.
                async with asyncio.timeout(self._heartbeat_s):
                    channel, payload = await queue.get()
            except TimeoutError:
                try:
                    await connection.execute("SELECT 1", timeout=self._heartbeat_s)
                except CONNECTION_FAILURES:
                    return
                continue
            await self._handler(channel, payload)

    @staticmethod
    async def _discard(connection: Any) -> None:
        if connection is not None:
            with contextlib.suppress(*CONNECTION_FAILURES):
                await connection.close(timeout=1.0)
