"""A node killed in the middle of a batch: every line has exactly one result, and what ran twice is on record."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx2
import pytest

from tests.chaos.conftest import FULL, Count, Start
from tests.fakes.gateway_process import GatewayProcess
from tests.fakes.stage import UpstreamThread

REQUESTS = 1000 if FULL else 60
KILLS = 3 if FULL else 1
ENDED = ("completed", "failed", "expired", "cancelled")


class Caller:
    """One caller's view of `/v1/files` and `/v1/batches`."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._headers = {"authorization": f"Bearer {gateway.token()}"}

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        answer = httpx2.request(method, f"{self._gateway.url}/v1{path}", headers=self._headers, timeout=60, **more)
        assert answer.status_code == 200, answer.text
        return answer

    def start(self, count: int) -> str:
        lines = [
            {
                "custom_id": f"r-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "mini", "max_tokens": 5, "messages": [{"role": "user", "content": f"n {number}"}]},
            }
            for number in range(count)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
        file_id = self.ask("POST", "/files", **form).json()["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return str(self.ask("POST", "/batches", json=body).json()["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/batches/{batch_id}").json())

    async def until(self, batch_id: str, completed: int) -> dict[str, Any]:
        """The batch once so many lines have a result, or it has ended."""
        while True:
            found = await asyncio.to_thread(self.batch, batch_id)
            if found["request_counts"]["completed"] >= completed or found["status"] in ENDED:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.short
async def test_kill_minus_nine_in_the_middle_of_a_batch(gateway: Start, upstream: UpstreamThread, count: Count) -> None:
    upstream.script.mode, upstream.script.delay_s = "late", 0.1
    one = gateway(batches={"concurrency": 8, "lease_s": 2, "poll_s": 0.2})
    await asyncio.to_thread(one.start)
    caller = Caller(one)
    batch_id = await asyncio.to_thread(caller.start, REQUESTS)
    for kill in range(KILLS):
        found = await caller.until(batch_id, (kill + 1) * REQUESTS // (KILLS + 1))
        assert found["status"] == "in_progress"
        one.kill()
        await asyncio.to_thread(one.start)
    ended = await caller.until(batch_id, REQUESTS + 1)
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": REQUESTS, "completed": REQUESTS, "failed": 0}
    assert ended["error_file_id"] is None
    content = (await asyncio.to_thread(caller.ask, "GET", f"/files/{ended['output_file_id']}/content")).text
    results = [json.loads(line) for line in content.splitlines()]
    assert [each["custom_id"] for each in results] == [f"r-{number}" for number in range(REQUESTS)]
    assert {each["response"]["status_code"] for each in results} == {200}
    attempts = Counter[str]()
    for _ in range(100):
        rows = await one.rows(
            "SELECT personal->>'client_request_id' AS label FROM audit_event"
            " WHERE phase = 'intent' AND personal->>'client_request_id' LIKE $1",
            f"{batch_id}/%",
        )
        attempts = Counter(row["label"] for row in rows)
        if len(attempts) == REQUESTS:
            break
        await asyncio.sleep(0.1)
    assert len(attempts) == REQUESTS
    ended_as = await one.rows(
        "SELECT outcome, count(*) AS number FROM audit_event"
        " WHERE phase = 'completion' AND personal->>'client_request_id' LIKE $1 GROUP BY outcome",
        f"{batch_id}/%",
    )
    outcomes = {row["outcome"]: row["number"] for row in ended_as}
    repeated = sum(attempts.values()) - REQUESTS
    count(kills=KILLS, requests=REQUESTS, results=len(results), twice=0, run_again=repeated, **outcomes)
    assert repeated > 0
    assert one.stop() == 0
    verified = await asyncio.to_thread(one.verify)
    assert verified.returncode == 0, verified.stdout


async def test_a_node_that_is_told_to_end_gives_its_lines_back(
    gateway: Start, upstream: UpstreamThread, count: Count
) -> None:
    """Its leases would last for an hour: the next node would have to wait for them."""
    upstream.script.mode, upstream.script.delay_s = "late", 0.2
    one = gateway(batches={"concurrency": 8, "lease_s": 3600, "poll_s": 0.2})
    await asyncio.to_thread(one.start)
    caller = Caller(one)
    batch_id = await asyncio.to_thread(caller.start, 100)
    await caller.until(batch_id, 20)
    assert await asyncio.to_thread(one.stop) == 0
    await asyncio.to_thread(one.start)
    ended = await caller.until(batch_id, 101)
    assert (ended["status"], ended["request_counts"]["completed"]) == ("completed", 100)
    count(requests=100, results=ended["request_counts"]["completed"])
