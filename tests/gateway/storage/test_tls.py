"""Stores behind TLS: what a database URL may ask for, and that both clients of each store prove the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from gateway.errors import ConfigError
from gateway.storage.dsn import driver_dsn, driver_numbers, parse_database_url
from gateway.storage.migrate import current, head
from gateway.storage.postgres import Listener, connect_raw, make_engine
from gateway.storage.valkey import ValkeyError, ValkeyLink, parse_address, tls_context
from tests.fakes.tls_front import TlsFront, make_certificate


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path)


@pytest.fixture
def postgres_front(database_url: str, certificate: tuple[Path, Path]) -> Iterator[TlsFront]:
    with TlsFront(*certificate, make_url(database_url).port or 0, postgres=True) as front:
        yield front


@pytest.fixture
def valkey_front(valkey_url: str, certificate: tuple[Path, Path]) -> Iterator[TlsFront]:
    with TlsFront(*certificate, parse_address(valkey_url).port, postgres=False) as front:
        yield front


def behind(front: TlsFront, database_url: str, query: str) -> str:
    url = make_url(database_url).set(drivername="postgresql", port=front.port)
    return f"{url.render_as_string(hide_password=False)}?{query}"


async def ask_everyone(url: str) -> list[int]:
    """Through the pool, a plain connection and one that listens for notifications."""
    engine = make_engine(url, pool_size=1)
    try:
        async with engine.connect() as connection:
            pooled = await connection.scalar(text("SELECT 1"))
        told = asyncio.Event()

        async def handler(_channel: str, _payload: str | None) -> None:
            told.set()

        listening = asyncio.create_task(
            Listener(engine.url.render_as_string(hide_password=False), ["news"], handler).run()
        )
        async with asyncio.timeout(20):
            await told.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    finally:
        await engine.dispose()
    raw = await connect_raw(url)
    try:
        return [pooled or 0, await raw.fetchval("SELECT 1")]
    finally:
        await raw.close()


@pytest.mark.parametrize(
    "query", ["sslmode=require", "ssl=require", "ssl=true", "sslmode=require&channel_binding=prefer"]
)
async def test_a_managed_database_url_serves_every_client(
    postgres_front: TlsFront, database_url: str, query: str
) -> None:
    url = behind(postgres_front, database_url, query)
    assert await ask_everyone(url) == [1, 1]
    assert await current(url) == head()  # migrations too
    assert postgres_front.handshakes >= 4


async def test_verify_full_takes_the_certificate_it_was_given(
    postgres_front: TlsFront, database_url: str, certificate: tuple[Path, Path]
) -> None:
    query = f"sslmode=verify-full&sslrootcert={certificate[0]}&ssl_min_protocol_version=TLSv1.2"
    assert await ask_everyone(behind(postgres_front, database_url, query)) == [1, 1]


@pytest.mark.parametrize("with_root", [True, False], ids=["another authority", "the system's authorities"])
async def test_verify_full_refuses_any_other(
    postgres_front: TlsFront, database_url: str, tmp_path: Path, with_root: bool
) -> None:
    stranger, _ = make_certificate(tmp_path, "stranger")
    query = "sslmode=verify-full" + (f"&sslrootcert={stranger}" if with_root else "")
    url = behind(postgres_front, database_url, query)
    engine = make_engine(url, pool_size=1)
    with pytest.raises(OSError, match="certificate verify failed"):
        async with engine.connect():
            pass
    with pytest.raises(OSError, match="certificate verify failed"):
        await connect_raw(url)
    await engine.dispose()


async def test_a_client_certificate_reaches_a_server_that_asks_for_one(
    database_url: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    own, key = make_certificate(tmp_path, "client")
    target = make_url(database_url).port or 0
    with TlsFront(*certificate, target, postgres=True, ask_for=own) as front:
        query = f"sslmode=verify-full&sslrootcert={certificate[0]}&sslcert={own}&sslkey={key}"
        assert await ask_everyone(behind(front, database_url, query)) == [1, 1]
        with pytest.raises((OSError, asyncpg.PostgresError)):
            await connect_raw(behind(front, database_url, f"sslmode=verify-full&sslrootcert={certificate[0]}"))


async def test_required_tls_is_not_given_up_when_the_server_has_none(database_url: str) -> None:
    url = f"{make_url(database_url).set(drivername='postgresql').render_as_string(hide_password=False)}?sslmode=require"
    with pytest.raises(OSError, match="rejected SSL upgrade"):
        await connect_raw(url)
    engine = make_engine(url)
    with pytest.raises(OSError, match="rejected SSL upgrade"):
        async with engine.connect():
            pass
    await engine.dispose()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("sslmode=verify_full", "`sslmode=verify_full`"),
        ("sslmode=REQUIRE", "`sslmode=REQUIRE`"),
        ("channel_binding=require", "`channel_binding=require`"),
        ("sslcrldir=/crl", "`sslcrldir=/crl`"),
        ("sslsni=0", "`sslsni=0`"),
        ("gssencmode=require", "`gssencmode=require`"),
        ("statement_cache_size=many", "`statement_cache_size`"),
    ],
)
def test_what_the_driver_cannot_do_ends_the_start(query: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_database_url(f"postgresql://user:hunter2@db/x?{query}")
    assert problem in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_certificate_that_is_not_there_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="`sslrootcert` of the database URL names a file that cannot be read"):
        make_engine("postgresql://u:p@db/x?sslmode=verify-full&sslrootcert=/nowhere/ca.pem")


def test_parameters_reach_the_reader_that_knows_them() -> None:
    asked = (
        "application_name=x&connect_timeout=10&statement_cache_size=0&prepared_statement_cache_size=0&sslcompression=0"
    )
    url = parse_database_url(f"postgres://u:p%40@h:6432/d?sslmode=require&{asked}")
    assert driver_dsn(url) == "postgresql://u:p%40@h:6432/d?sslmode=require&application_name=x"
    assert driver_numbers(url) == {"statement_cache_size": 0}
    assert url.query["prepared_statement_cache_size"] == "0"


def test_the_systems_authorities_can_be_named() -> None:
    url = parse_database_url("postgresql://u:p@h/d?sslrootcert=system")
    assert url.query["sslmode"] == "verify-full"
    assert Path(str(url.query["sslrootcert"])).is_file()


async def test_valkey_is_proved_by_the_authority_that_is_configured(
    valkey_front: TlsFront, valkey_url: str, certificate: tuple[Path, Path]
) -> None:
    password = parse_address(valkey_url).password
    link = ValkeyLink(f"rediss://:{password}@127.0.0.1:{valkey_front.port}/0", tls=tls_context(certificate[0]))
    await link.connect()
    assert await link.call("PING") == b"PONG"
    await link.close()
    assert valkey_front.handshakes == 1


async def test_valkey_behind_any_other_certificate_gets_no_password(valkey_front: TlsFront, tmp_path: Path) -> None:
    stranger, _ = make_certificate(tmp_path, "stranger")
    for context in (tls_context(stranger), tls_context(None), None):
        link = ValkeyLink(f"rediss://:secret@127.0.0.1:{valkey_front.port}", tls=context)
        with pytest.raises(ValkeyError, match="CERTIFICATE_VERIFY_FAILED"):
            await link.connect()


async def test_a_client_certificate_reaches_a_valkey_that_asks_for_one(
    valkey_url: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    own, key = make_certificate(tmp_path, "client")
    address = parse_address(valkey_url)
    with TlsFront(*certificate, address.port, postgres=False, ask_for=own) as front:
        url = f"rediss://:{address.password}@127.0.0.1:{front.port}"
        link = ValkeyLink(url, tls=tls_context(certificate[0], own, key))
        await link.connect()
        assert await link.call("PING") == b"PONG"
        await link.close()


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl_ca_certs=/ca.pem", "db=0&protocol=3"])
def test_a_parameter_of_the_store_url_that_is_not_understood_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"not supported; certificates are set in `store\.redis_ca_file`"):
        parse_address(f"rediss://:hunter2@h/0?{query}")
