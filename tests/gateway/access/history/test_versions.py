"""The policy history on a real Postgres: seeding, versions, one winner, propagation, life without the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.access.history.versions import Author, NewVersion, StaleVersion
from gateway.errors import Unavailable
from gateway.flow.context import SystemClock
from gateway.flow.values import ModelCard
from gateway.settings import AccessSettings
from gateway.storage.postgres import connect_raw, make_engine
from tests.fakes.hang_guard import hang_guard

SEED = Path(__file__).parents[4] / "policies" / "default.yaml"
CATALOG = (
    ModelCard("smollm2-135m-instruct", "local", tier="small"),
    ModelCard("qwen2.5-coder-0.5b-instruct", "local", tier="large"),
    ModelCard("auto", "router", virtual=True),
)
ALICE = Author("acme", "https://idp", "alice")


@pytest.fixture
async def repository(database_url: str) -> AsyncIterator[PolicyRepository]:
    engine = make_engine(database_url, pool_size=10)
    yield PolicyRepository(engine)
    await engine.dispose()


ServiceMaker = Callable[..., AccessService]


@pytest.fixture
async def make_service(repository: PolicyRepository) -> AsyncIterator[ServiceMaker]:
    made: list[AccessService] = []

    def make(**settings: object) -> AccessService:
        service = AccessService(
            catalog=CATALOG,
            clock=SystemClock(),
            repository=repository,
            seed=SEED,
            settings=AccessSettings(**settings),
        )
        made.append(service)
        return service

    yield make
    for service in made:
        await service.close()


def changed(text: str) -> NewVersion:
    return NewVersion(text, "yaml", "0" * 64, tuple(card.id for card in CATALOG), ALICE, "test")


async def until(condition: Callable[[], bool]) -> None:
    async with hang_guard():
        while not condition():  # noqa: ASYNC110 - a version in memory has no event
            await asyncio.sleep(0.005)


async def test_an_empty_database_is_seeded_from_the_file(make_service: ServiceMaker) -> None:
    service = make_service()
    await service.start()
    assert service.version == 1
    assert service.stored is not None
    assert service.stored.content.source == SEED.read_text(encoding="utf-8")


async def test_replicas_that_start_together_seed_once(make_service: ServiceMaker, repository: PolicyRepository) -> None:
    await asyncio.gather(*(make_service().start() for _ in range(4)))
    _, total = await repository.page(before=None, limit=10)
    assert total == 1


async def test_a_change_reaches_another_replica_by_notification(
    make_service: ServiceMaker, repository: PolicyRepository
) -> None:
    first, second = make_service(poll_s=600.0), make_service(poll_s=600.0)
    await first.start()
    await second.start()
    await asyncio.sleep(0.3)
    await repository.append(changed(SEED.read_text(encoding="utf-8") + "\n# changed"), expected=1)
    await until(lambda: first.version == 2 and second.version == 2)  # a poll would come after ten minutes


async def test_of_fifty_concurrent_writers_exactly_one_wins_each_version(repository: PolicyRepository) -> None:
    await repository.seed(changed(SEED.read_text(encoding="utf-8")))

    async def write(number: int) -> int | None:
        try:
            return (await repository.append(changed(f"# {number}"), expected=1)).version
        except StaleVersion:
            return None

    results = await asyncio.gather(*(write(number) for number in range(50)))
    assert [version for version in results if version is not None] == [2]


async def test_a_missed_notification_is_made_up_by_the_poll(make_service: ServiceMaker, database_url: str) -> None:
    service = make_service(poll_s=0.2)
    await service.start()
    connection = await connect_raw(database_url)
    await connection.execute(
        "INSERT INTO policy_version (version, sha256, source, syntax, known_models, author_tenant, author_issuer,"
        " author_subject, origin) SELECT 2, sha256, source, syntax, known_models, 't', 'i', 's', 'change'"
        " FROM policy_version WHERE version = 1"
    )
    await connection.execute("UPDATE policy_head SET version = 2")
    await connection.close()
    await until(lambda: service.version == 2)


async def test_a_stored_version_that_cannot_be_used_leaves_the_last_good_one_serving(
    make_service: ServiceMaker, repository: PolicyRepository
) -> None:
    service = make_service(poll_s=0.1)
    await service.start()
    await repository.append(changed("apiVersion: esclusa/v9"), expected=1)
    await until(lambda: service.status().state == "degraded")
    assert service.version == 1


async def test_the_history_cannot_be_rewritten(repository: PolicyRepository, database_url: str) -> None:
    await repository.seed(changed("# one"))
    connection = await connect_raw(database_url)
    for statement in (
        "UPDATE policy_version SET source = 'other'",
        "DELETE FROM policy_version",
        "TRUNCATE policy_version CASCADE",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    await connection.close()


async def test_without_any_copy_a_dead_database_means_503(tmp_path: Path) -> None:
    engine = make_engine("postgresql://nobody@127.0.0.1:1/none")
    service = AccessService(
        catalog=CATALOG,
        clock=SystemClock(),
        repository=PolicyRepository(engine),
        seed=SEED,
        settings=AccessSettings(snapshot_dir=tmp_path),
    )
    await service.start()
    with pytest.raises(Unavailable) as raised:
        _ = service.version
    assert raised.value.code == "policy_unavailable"
    assert service.status().state == "unavailable"
    await service.close()
    await engine.dispose()
