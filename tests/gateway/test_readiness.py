"""Parts of readiness: what makes a replica unready, what is only said, and how both are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.api.health import Part, Readiness
from gateway.readiness import _postgres, _quarantine, _spool
from gateway.storage.postgres_watch import PostgresWatch
from gateway.telemetry.metrics import HELP, PartCollector, StateCollector, explain


def test_one_part_that_cannot_serve_makes_the_replica_unready() -> None:
    parts = [
        Part("audit", "ready"),
        Part("limits", "degraded"),
        Part("engine", "loading", False, "smol: weights", 40.0),
    ]
    state = Readiness.of(parts)
    assert (state.ready, state.stage, state.percent) == (False, "smol: weights", 40.0)
    assert state.parts == {"audit": "ready", "limits": "degraded", "engine": "loading"}
    assert Readiness.of(parts[:2]).ready


@pytest.mark.parametrize(
    ("used", "healthy", "part"),
    [
        (10, True, Part("spool", "ready")),
        (51, True, Part("spool", "filling")),
        (100, False, Part("spool", "refusing", serves=False)),
    ],
)
def test_the_spool_says_that_it_fills_before_it_refuses(used: int, healthy: bool, part: Part) -> None:
    assert _spool({"spool_bytes": used, "spool_quota_bytes": 100}, healthy=healthy) == part


def test_records_kept_aside_are_said_and_do_not_stop_serving() -> None:
    assert _quarantine({"quarantined": 0}) == Part("quarantine", "empty")
    for name in ("quarantined", "quarantined_files", "lost_records"):
        assert _quarantine({name: 3}) == Part("quarantine", "holds_records")


def test_a_postgres_that_answers_and_takes_no_records_is_not_ready() -> None:
    watch = PostgresWatch("postgresql://u:p@127.0.0.1:1/x")
    assert _postgres({"postgres": "ok"}, watch).state == "unknown"
    watch.state = "ready"
    assert _postgres({"postgres": "ok"}, watch) == Part("postgres", "ready")
    assert _postgres({"postgres": "DiskFullError"}, watch) == Part("postgres", "takes_no_records")
    assert _postgres({"housekeeping_fails": True}, watch) == Part("postgres", "housekeeping_fails")
    watch.state = "away"
    assert _postgres({"postgres": "OSError"}, watch).state == "away"


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_the_watch_sees_postgres_leave_and_come_back_and_reads_its_clock(database_url: str) -> None:
    watch = PostgresWatch(database_url, interval_s=0.05)
    watching = asyncio.create_task(watch.run())
    await until(lambda: watch.state == "ready")
    assert abs(watch.clock_skew_s or 0.0) < 5
    assert watch.status()["up"] is True
    watch._url = "postgresql://nobody:x@127.0.0.1:1/none"
    await _end_own_connection(database_url)
    await until(lambda: watch.state == "away")
    assert watch.status()["up"] is False
    watch._url = database_url
    await until(lambda: watch.state == "ready")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def _end_own_connection(database_url: str) -> None:
    from gateway.storage.postgres import connect_raw

    connection = await connect_raw(database_url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'esclusa-watch'"
    )
    await connection.close()


def test_metrics_name_the_state_of_each_part() -> None:
    registry = CollectorRegistry()
    registry.register(PartCollector(lambda: [Part("audit", "ready"), Part("engine", "failed", serves=False)]))
    text = generate_latest(registry).decode()
    assert 'esclusa_part_ready{part="audit"} 1.0' in text
    assert 'esclusa_part_ready{part="engine"} 0.0' in text
    assert 'esclusa_part_state{part="engine",state="failed"} 1.0' in text


def test_every_number_is_explained_in_a_sentence() -> None:
    for text in [*HELP.values(), explain("audit", "something_new")]:
        assert text[0].isupper() or text[0].isdigit()
        assert text.endswith(".")
        assert "_" not in text
    registry = CollectorRegistry()
    registry.register(StateCollector({"audit": lambda: {"spool_bytes": 7, "state": "ready"}}))
    text = generate_latest(registry).decode()
    assert "# HELP esclusa_audit_spool_bytes Bytes of audit records on disk" in text
    assert "# HELP esclusa_audit_state 1 for the present state of the audit part." in text
