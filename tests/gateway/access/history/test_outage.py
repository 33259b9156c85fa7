"""The policy while the database is stopped, frozen or gone for too long: serve the last good one, then deny."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.access.history.local_copy import FILE_NAME
from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.access.history.versions import NewVersion
from gateway.errors import ConfigError, Unavailable
from gateway.flow.context import Clock, SystemClock
from gateway.local.postgres import PrivatePostgres
from gateway.settings import AccessSettings
from gateway.storage.migrate import downgrade, upgrade
from gateway.storage.postgres import make_engine
from tests.fakes.hang_guard import hang_guard
from tests.fakes.manual_clock import ManualClock
from tests.fakes.policies import when
from tests.fakes.policy_stage import CALLERS, CATALOG, SEED

TEXT = SEED.read_text(encoding="utf-8")
PATIENCE_S = 1.0
"""The shortest wait for a frozen server: a connection that does not open. A statement takes a second more."""
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture(scope="module")
def spare_postgres(store_dir: Path) -> Iterator[PrivatePostgres]:
    """A server that the tests of this file may stop and freeze."""
    server = PrivatePostgres(store_dir / "policy-spare", options={"fsync": "off", "max_connections": "40"})
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def own_engine(spare_postgres: PrivatePostgres) -> AsyncIterator[AsyncEngine]:
    if not spare_postgres.running:
        spare_postgres.start(port=spare_postgres.port)
    await upgrade(spare_postgres.url)
    engine = make_engine(spare_postgres.url, statement_timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S)
    yield engine
    await engine.dispose()


def service_on(engine: AsyncEngine | None, clock: Clock | None = None, **settings: object) -> AccessService:
    return AccessService(
        catalog=CATALOG,
        clock=clock or SystemClock(),
        repository=PolicyRepository(engine) if engine is not None else None,
        seed=SEED,
        settings=AccessSettings(**settings),
    )


def employee_may_chat(service: AccessService) -> bool:
    return service.decide(CALLERS["elena"], "chat", CATALOG[0], when()).allowed


async def until(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def signal_all(server: PrivatePostgres, number: signal.Signals) -> None:
    """To the server and its backends, which share a process group of their own."""
    assert server.pid is not None
    group = os.getpgid(server.pid)
    assert group != os.getpgid(0)
    os.killpg(group, number)


async def test_with_the_database_stopped_the_last_good_policy_serves_and_recovers(
    spare_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    service = service_on(own_engine, poll_s=0.1)
    await service.start()
    version = service.version
    await asyncio.to_thread(spare_postgres.stop)
    await until(lambda: service.status().state == "degraded")
    assert employee_may_chat(service)
    await asyncio.to_thread(spare_postgres.start, port=spare_postgres.port)
    content = NewVersion(TEXT, "yaml", "0" * 64, (), service.stored.content.author)  # type: ignore[union-attr]
    await PolicyRepository(own_engine).append(content, expected=version)
    await until(lambda: service.version == version + 1)
    assert service.status().state == "ready"
    await service.close()


async def test_with_the_database_frozen_decisions_take_no_longer(
    spare_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    """Neither more work, in the thread's own processor time, nor any waiting for the server."""
    service = service_on(own_engine, poll_s=0.05)
    await service.start()
    signal_all(spare_postgres, signal.SIGSTOP)
    try:
        await asyncio.sleep(0.2)
        worked = list[float]()
        async with hang_guard():  # the database is frozen until this block has ended
            for _ in range(200):
                began_work = time.thread_time()
                assert employee_may_chat(service)
                worked.append(time.thread_time() - began_work)
                await asyncio.sleep(0)
        assert max(worked) < 0.05
    finally:
        signal_all(spare_postgres, signal.SIGCONT)
    await service.close()


async def test_a_database_that_comes_up_after_the_gateway_is_seeded_then(
    spare_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    await downgrade(spare_postgres.url, "0001_audit")
    service = service_on(own_engine, poll_s=0.1)
    await service.start()
    assert service.status().state == "unavailable"
    await upgrade(spare_postgres.url)
    await until(lambda: service.status().state == "ready")
    assert service.version == 1
    await service.close()


async def saved_copy(own_engine: AsyncEngine, folder: Path) -> int:
    """Let a service write its local copy; the version in it."""
    service = service_on(own_engine, snapshot_dir=folder)
    await service.start()
    version = service.version
    await service.close()
    assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600
    return version


async def started_without_database(folder: Path, clock: Clock | None = None, **settings: object) -> AccessService:
    engine = make_engine(NOWHERE)
    service = service_on(engine, clock, snapshot_dir=folder, **settings)
    await service.start()
    await service.close()
    await engine.dispose()
    return service


async def test_a_start_without_the_database_serves_the_local_copy(own_engine: AsyncEngine, tmp_path: Path) -> None:
    version = await saved_copy(own_engine, tmp_path)
    service = await started_without_database(tmp_path)
    assert (service.version, service.status().state) == (version, "degraded")
    assert employee_may_chat(service)


async def test_a_damaged_local_copy_is_not_used(own_engine: AsyncEngine, tmp_path: Path) -> None:
    await saved_copy(own_engine, tmp_path)
    file = tmp_path / FILE_NAME
    file.write_text(file.read_text().replace("employee", "Employee", 1))
    service = await started_without_database(tmp_path)
    with pytest.raises(Unavailable):
        employee_may_chat(service)


async def test_a_local_copy_older_than_the_limit_is_not_used(own_engine: AsyncEngine, tmp_path: Path) -> None:
    await saved_copy(own_engine, tmp_path)
    clock = ManualClock()
    clock.advance(3601)
    service = await started_without_database(tmp_path, clock, max_stale_s=3600)
    assert service.status().state == "unavailable"


async def test_an_unconfirmed_policy_serves_up_to_the_limit_and_then_answers_503(
    own_engine: AsyncEngine, tmp_path: Path
) -> None:
    await saved_copy(own_engine, tmp_path)
    clock = ManualClock()
    service = await started_without_database(tmp_path, clock, max_stale_s=3600)
    clock.advance(3500)
    assert employee_may_chat(service)
    clock.advance(101)
    with pytest.raises(Unavailable) as raised:
        employee_may_chat(service)
    assert (raised.value.status, raised.value.code) == (503, "policy_unavailable")


async def test_without_a_repository_the_file_is_the_policy_and_never_too_old() -> None:
    clock = ManualClock()
    service = service_on(None, clock)
    await service.start()
    clock.advance(10**6)
    assert (service.version, employee_may_chat(service)) == (1, True)


async def test_a_broken_seed_file_stops_the_start_with_its_place(tmp_path: Path) -> None:
    seed = tmp_path / "policy.yaml"
    seed.write_text(TEXT.replace("effect: allow", "efect: allow", 1), encoding="utf-8")
    service = AccessService(catalog=CATALOG, clock=SystemClock(), seed=seed, settings=AccessSettings())
    with pytest.raises(ConfigError) as raised:
        await service.start()
    assert str(raised.value).startswith(f"{seed}:38:5: `rules[0].efect`: unknown field `efect`")
    assert "did you mean `effect`?" in str(raised.value)


async def test_a_seed_file_whose_own_tests_fail_stops_the_start(tmp_path: Path) -> None:
    seed = tmp_path / "policy.yaml"
    seed.write_text(
        TEXT.replace("groups: [small, routed, embedding, guardrails]", "groups: [routed]"), encoding="utf-8"
    )
    service = AccessService(catalog=CATALOG, clock=SystemClock(), seed=seed, settings=AccessSettings())
    with pytest.raises(ConfigError, match="an employee uses the small model"):
        await service.start()


async def test_a_missing_seed_file_stops_the_start(tmp_path: Path) -> None:
    service = AccessService(
        catalog=CATALOG, clock=SystemClock(), seed=tmp_path / "gone.yaml", settings=AccessSettings()
    )
    with pytest.raises(ConfigError, match="the policy file cannot be read"):
        await service.start()


async def test_visible_models_are_exactly_those_that_a_call_may_use() -> None:
    service = service_on(None)
    await service.start()
    for principal in CALLERS.values():
        shown = {card.id for card in service.visible_models(principal, when())}
        usable = {card.id for card in CATALOG if service.decide(principal, "chat", card, when()).allowed}
        assert shown == usable
    assert [card.id for card in service.visible_models(CALLERS["elena"], when())] == [
        card.id for card in CATALOG if card.tier != "large"
    ]
