"""A private store that dies under its gateway: back on its old port with its data, as often as it takes."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.local.child import is_alive
from gateway.local.keeper import StoreKeeper
from gateway.local.postgres import PrivatePostgres
from gateway.local.private_server import PrivateServer
from gateway.local.valkey import PrivateValkey
from gateway.storage.postgres import connect_raw
from tests.fakes.valkey_raw import ask

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="esclusa-keeper-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def kept(server: PrivateServer, backoff_s: tuple[float, ...] = (0.0, 0.1)) -> AsyncIterator[StoreKeeper]:
    await asyncio.to_thread(server.start)
    keeper = StoreKeeper([server], backoff_s=backoff_s)
    keeper.start()
    try:
        yield keeper
    finally:
        await keeper.close()
        await asyncio.to_thread(server.stop)


def kill(server: PrivateServer) -> int:
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def restarted(keeper: StoreKeeper, server: PrivateServer, times: int = 1) -> None:
    async with asyncio.timeout(30):
        while keeper.restarts(server.name) < times:  # noqa: ASYNC110 - it tells only by its metric
            await asyncio.sleep(0.02)


async def test_a_valkey_killed_with_minus_nine_is_back_on_its_port_with_its_data(folder: Path) -> None:
    server = PrivateValkey(folder / "valkey", options={"appendfsync": "always"})
    async with kept(server) as keeper:
        url = server.url
        ask(url, "SET presupuesto 42")
        old = kill(server)
        await restarted(keeper, server)
        assert server.url == url
        assert server.pid != old
        assert ask(url, "GET presupuesto") == b"$2\r\n42\r\n"


async def test_a_postgres_killed_with_minus_nine_is_back_on_its_port_with_its_data(folder: Path) -> None:
    server = PrivatePostgres(folder / "postgres")
    async with kept(server) as keeper:
        url = server.url
        connection = await connect_raw(url)
        await connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        await connection.close()
        kill(server)
        await restarted(keeper, server)
        connection = await connect_raw(url)
        assert await connection.fetchval("SELECT n FROM kept") == 7
        await connection.close()


async def test_a_store_that_dies_again_and_again_is_brought_back_each_time(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = PrivateValkey(folder / "valkey")
    async with kept(server, backoff_s=(0.0, 0.05)) as keeper:
        for number in range(1, 7):
            kill(server)
            await restarted(keeper, server, number)
        assert server.running
    levels = [record.levelno for record in caplog.records if "died; restart" in record.message]
    assert levels == [logging.ERROR, *[logging.CRITICAL] * 5]


async def test_a_store_that_cannot_be_started_is_tried_again(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PrivateValkey(folder / "valkey")
    async with kept(server) as keeper:
        start, failures = server.start, iter([OSError("no file descriptors")])

        def sometimes(**options: int) -> str:
            for failure in failures:
                raise failure
            return start(**options)

        monkeypatch.setattr(server, "start", sometimes)
        kill(server)
        await restarted(keeper, server)
    assert "cannot be started: no file descriptors" in caplog.text


async def test_the_numbers_tell_of_it(folder: Path) -> None:
    server = PrivateValkey(folder / "valkey")
    registry = CollectorRegistry()
    async with kept(server) as keeper:
        registry.register(keeper)
        kill(server)
        await restarted(keeper, server)
        told = generate_latest(registry).decode()
    assert 'esclusa_local_store_up{store="Valkey"} 1.0' in told
    assert 'esclusa_local_store_restarts_total{store="Valkey"} 1.0' in told


async def test_closing_waits_for_a_restart_so_that_no_server_is_left_behind(folder: Path) -> None:
    server = PrivateValkey(folder / "valkey")
    await asyncio.to_thread(server.start)
    keeper = StoreKeeper([server])
    keeper.start()
    kill(server)
    async with asyncio.timeout(10):
        while server.running:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    await keeper.close()
    last = server.pid
    await asyncio.to_thread(server.stop)
    assert last is not None
    assert not is_alive(last)
