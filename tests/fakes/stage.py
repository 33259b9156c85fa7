"""Fixtures for tests over HTTP: a whole gateway on real stores, with signed tokens and a scripted upstream.

Import the fixtures that a folder needs in its conftest. One gateway serves all tests of a module.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from gateway.local.issuer import DevIssuer
from gateway.settings import Settings
from tests.fakes.openai_upstream import Upstream
from tests.fakes.running_gateway import RunningGateway

_numbers = itertools.count(1)
POLICY = Path(__file__).parent.parent / "data" / "stage-policy.yaml"


class UpstreamThread:
    """The scripted upstream on its own event loop; `script` may be changed from any thread."""

    def __init__(self) -> None:
        self.script = Upstream()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upstream", daemon=True)

    def __enter__(self) -> UpstreamThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.script.__aenter__(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        await self.script.__aexit__()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Stage:
    """What a test needs to speak to the gateway and to look behind it."""

    url: str
    gateway: RunningGateway
    upstream: Upstream
    issuer: DevIssuer
    database_url: str

    def token(self, *roles: str, sub: str = "u-1", tenant: str = "acme", department: str | None = "finance") -> str:
        return self.issuer.mint(sub, roles or ("analyst",), department=department, tenant=tenant)

    def headers(self, *roles: str, **claims: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token(*roles, **claims)}"}

    def records(self, request_id: str, *, expect: int = 2, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The audit rows of a request, once they have been shipped to Postgres."""
        return list(apart(_records(self.database_url, "request_id = $1", request_id, expect, timeout_s)))

    def records_of(self, subject: str, *, expect: int = 2, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        return list(apart(_records(self.database_url, "subject = $1", subject, expect, timeout_s)))

    def revoke(self, sub: str, tenant: str = "acme") -> None:
        """Everything issued to a subject, through the admin API."""
        body = {
            "kind": "subject",
            "issuer": self.issuer.issuer,
            "subject": sub,
            "reason": "left the company",
        }
        answer = httpx2.post(
            f"{self.url}/admin/v1/revocations", json=body, headers=self.headers("security", sub="u-sec", tenant=tenant)
        )
        assert answer.status_code == 201, answer.text


def apart(work: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _connect(url: str) -> Any:
    return await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))


async def _records(url: str, condition: str, value: str, expect: int, timeout_s: float) -> list[dict[str, Any]]:
    connection = await _connect(url)
    try:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            rows = await connection.fetch(
                f"SELECT * FROM audit_event WHERE {condition} AND phase <> 'access' ORDER BY ts, event_id", value
            )
            if len(rows) >= expect or asyncio.get_running_loop().time() > deadline:
                return [dict(row) for row in rows]
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def _run_sql(url: str, statement: str) -> None:
    connection = await _connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def upstream_thread() -> Iterator[UpstreamThread]:
    with UpstreamThread() as thread:
        yield thread


@pytest.fixture(autouse=True)
def _plain_upstream(upstream_thread: UpstreamThread) -> None:
    script = upstream_thread.script
    script.mode, script.words, script.delay_s, script.on_event = "ok", ("Hola", ", ", "mundo", "!"), 0.05, None
    script.keeps_limits, script.misreports, script.says = False, None, None
    script.seen.clear()


@pytest.fixture(scope="session")
def issuer(store_dir: Path) -> DevIssuer:
    return DevIssuer.open(store_dir)


@pytest.fixture(scope="module")
def stage_database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    name = f"stage_{next(_numbers)}"
    apart(_run_sql(postgres_url, f"CREATE DATABASE {name} TEMPLATE {migrated_template}"))
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    apart(_run_sql(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    """A module overrides this to change the settings of its gateway."""
    return {}


@pytest.fixture(scope="module")
def stage(
    upstream_thread: UpstreamThread,
    issuer: DevIssuer,
    stage_database_url: str,
    valkey_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    stage_overrides: dict[str, Any],
) -> Iterator[Stage]:
    client = redis.Redis.from_url(valkey_url)
    client.flushall()
    client.close()
    settings = stage_settings(
        database_url=stage_database_url,
        valkey_url=valkey_url,
        issuer=issuer,
        upstream_url=upstream_thread.script.url,
        spool_dir=tmp_path_factory.mktemp("spool"),
        overrides=stage_overrides,
    )
    with RunningGateway(settings) as gateway:
        yield Stage(gateway.url, gateway, upstream_thread.script, issuer, stage_database_url)


def stage_settings(
    *,
    database_url: str,
    valkey_url: str,
    issuer: DevIssuer,
    upstream_url: str,
    spool_dir: Path,
    overrides: dict[str, Any] | None = None,
) -> Settings:
    """Two models of a scripted upstream, `mini` (small) and `maxi` (large), and one that embeds."""
    tree: dict[str, Any] = {
        "http": {"port": 0, "metrics_port": None, "shutdown_grace_s": 5.0},
        "store": {
            "database_url": SecretStr(database_url),
            "redis_url": SecretStr(valkey_url),
            "redis_timeout_ms": 2000,
        },
        "identity": {"providers": (issuer.provider_settings(),)},
        "access": {"policy_file": POLICY, "snapshot_dir": spool_dir.parent / "policies"},
        "audit": {"mode": "fast", "spool_dir": spool_dir},
        "upstreams": {"up": {"base_url": upstream_url, "api_key": SecretStr("up-secret-key"), "read_timeout_s": 5.0}},
        "models": (
            {"id": "mini", "tier": "small", "upstream": "up", "upstream_model": "up-mini", "context_window": 512},
            {
                "id": "maxi",
                "tier": "large",
                "upstream": "up",
                "context_window": 2048,
                "price_in_micro": 1_000_000,
                "price_out_micro": 2_000_000,
            },
            {"id": "embed", "upstream": "up", "actions": ("embeddings",)},
        ),
        "log": {"level": "warning"},
    }
    for section, values in (overrides or {}).items():
        tree[section] = {**tree.get(section, {}), **values} if isinstance(values, dict) else values
    return Settings.model_validate(tree)
