"""Real stores for tests: one private Postgres and one private Valkey per test process, a fresh database per test.

A test asks for `database_url` (a migrated, empty database of its own) or `valkey` (an empty keyspace).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
import redis.asyncio
from sqlalchemy.engine import make_url

from gateway.local.postgres import PrivatePostgres
from gateway.local.valkey import PrivateValkey
from gateway.storage.migrate import upgrade

# Triton reads it when a kernel's module is imported, by whatever test comes first. With a GPU, kernels are compiled.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
T = TypeVar("T")
TEMPLATE = "esclusa_template"
_numbers = itertools.count(1)


SERVERS = {"postgres_server", "valkey_server", "own_postgres", "own_valkey", "stage"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a server, by itself or through other fixtures, is marked so: `make quick` leaves it out."""
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("stores")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, whatever loop the test uses."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def store_dir() -> Iterator[Path]:
    """A folder that the user Postgres runs as can walk to; pytest's own is private to root."""
    folder = Path(tempfile.mkdtemp(prefix="esclusa-tests-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(store_dir: Path) -> Iterator[PrivatePostgres]:
    """The server itself, for tests that look at it. Never stop or freeze this one: start your own."""
    options = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
    server = PrivatePostgres(store_dir / "postgres", options=options)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PrivatePostgres) -> str:
    """A real Postgres; the database behind this URL has no tables."""
    return postgres_server.url


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> str:
    run_apart(_execute(postgres_url, f"CREATE DATABASE {TEMPLATE}"))
    url = make_url(postgres_url).set(database=TEMPLATE).render_as_string(hide_password=False)
    run_apart(upgrade(url))
    return TEMPLATE


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A database of this test alone, migrated to head."""
    name = f"test_{next(_numbers)}"
    run_apart(_execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE {migrated_template}"))
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    run_apart(_execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A database of this test alone, without any table."""
    name = f"test_{next(_numbers)}"
    run_apart(_execute(postgres_url, f"CREATE DATABASE {name}"))
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    run_apart(_execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def valkey_server(store_dir: Path) -> Iterator[PrivateValkey]:
    """The server itself. Never stop or freeze this one: start your own."""
    server = PrivateValkey(store_dir / "valkey", options={"appendonly": "no"})
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_url(valkey_server: PrivateValkey) -> str:
    """A real Valkey, shared by the tests of this process."""
    return valkey_server.url


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client on an empty keyspace."""
    client = redis.asyncio.Redis.from_url(valkey_url)
    await client.flushall()
    yield client
    await client.aclose()
