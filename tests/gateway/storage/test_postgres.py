"""Connections: notifications through a restart of the server, and bounded waits on one that does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.local.postgres import PrivatePostgres
from gateway.storage.postgres import Listener, connect_raw, make_engine
from tests.fakes.hang_guard import HANG_S


@pytest.fixture
def server(store_dir: Path) -> Iterator[PrivatePostgres]:
    server = PrivatePostgres(store_dir / "listened", options={"fsync": "off"})
    server.start()
    yield server
    server.stop()


async def notify(url: str, payload: str) -> None:
    connection = await connect_raw(url)
    await connection.execute("SELECT pg_notify('policy', $1)", payload)
    await connection.close()


async def test_a_listener_hears_and_comes_back_after_a_restart(server: PrivatePostgres) -> None:
    heard: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    async def hear(channel: str, payload: str | None) -> None:
        heard.put_nowait((channel, payload))

    listener = Listener(server.url, ["policy"], hear, heartbeat_s=0.2)
    task = asyncio.create_task(listener.run())
    async with asyncio.timeout(30):
        assert await heard.get() == ("policy", None)
        await notify(server.url, "v4")
        assert await heard.get() == ("policy", "v4")
        server.stop()
        server.start(port=server.port)
        assert await heard.get() == ("policy", None)
        await notify(server.url, "v5")
        assert await heard.get() == ("policy", "v5")
    assert listener.connected
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _open(engine: AsyncEngine) -> None:
    await engine.connect()


async def test_a_server_that_accepts_and_says_nothing_costs_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = make_engine(f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/d", connect_timeout_s=0.3)
        connecting = asyncio.ensure_future(_open(engine))
        done, _ = await asyncio.wait({connecting}, timeout=HANG_S)
        assert done, "the connect timeout does not bind"
        with pytest.raises(TimeoutError):
            await connecting
        await engine.dispose()


async def test_a_statement_is_ended_at_its_timeout(database_url: str) -> None:
    engine = make_engine(database_url, statement_timeout_s=0.2)
    async with engine.connect() as connection:
        with pytest.raises(Exception, match="statement timeout"):
            await connection.execute(text("SELECT pg_sleep(5)"))
    await engine.dispose()
