"""Answers that leave no record of their own are counted in the trail: paths, lists, refusals of parser and door."""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage, _connect, apart


@pytest.fixture(autouse=True)
def _counts_are_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.audit.service.BULK_S", 0.1)


async def _aggregated(url: str) -> list[dict[str, Any]]:
    connection = await _connect(url)
    try:
        query = "SELECT *, convert_from(rec, 'UTF8')::jsonb AS told FROM audit_event WHERE phase = 'aggregated'"
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


def counted(stage: Stage, wanted: Counter[tuple[int, str, str]]) -> Counter[tuple[int, str, str]]:
    """(status, code, route) -> how many, once all that is wanted has arrived."""
    deadline = time.monotonic() + 30
    while True:
        seen: Counter[tuple[int, str, str]] = Counter()
        for row in apart(_aggregated(stage.database_url)):
            told = _loads(row["told"])
            key = (told["result"]["status"], told["result"].get("error_code", ""), told["where"]["route"])
            seen[key] += told["aggregate"]["count"]
        if all(seen[key] >= count for key, count in wanted.items()) or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def _loads(value: Any) -> Any:
    import json

    return json.loads(value) if isinstance(value, str) else value


def send_raw(stage: Stage, data: bytes) -> bytes:
    host, port = stage.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(data)
        return link.recv(65_536)


def test_each_answer_is_in_the_trail_exactly_once(stage: Stage) -> None:
    analyst, auditor = stage.headers("analyst"), stage.headers("auditor", sub="u-audit")
    get = f"{stage.url}/admin/v1/audit/events"
    statuses = [
        httpx2.get(f"{stage.url}/v1/models", headers=analyst).status_code,
        httpx2.get(f"{stage.url}/nowhere/at-all").status_code,
        httpx2.get(f"{stage.url}/nowhere/else").status_code,
        httpx2.get(f"{stage.url}/v1/chat/completions", headers=analyst).status_code,
        httpx2.get(get, params={"nonsense": "1"}, headers=auditor).status_code,  # a caller who is known: so has this
        httpx2.get(f"{stage.url}/livez").status_code,
        httpx2.get(get, headers=auditor).status_code,  # has a record of its own
    ]
    assert statuses == [200, 404, 404, 405, 422, 200, 200]
    assert b" 400 " in send_raw(stage, b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert b" 400 " in send_raw(stage, b"NONSENSE\r\n\r\n")
    wanted = Counter(
        {
            (200, "", "/v1/models"): 1,
            (404, "not_found", "-"): 2,
            (405, "method_not_allowed", "-"): 1,
            (400, "invalid_host", "-"): 1,
            (400, "malformed_request", "-"): 1,
        }
    )
    assert counted(stage, wanted) == wanted
