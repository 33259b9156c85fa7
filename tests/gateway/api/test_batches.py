"""Batches over HTTP, under the rights and limits that their caller has when a line runs; uploads that are no forms."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.fakes.stage import Stage, _connect, apart

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: batches}
roles: {writer: {}, reader: {}, slow: {}, security: {}, policy-admin: {}}
rules:
  - {id: models, effect: allow, subjects: {roles: [writer, slow]}, actions: [chat], models: {ids: [mini]}}
  - {id: batches, effect: allow, subjects: {roles: [writer, slow]}, actions: [batches.use]}
  - {id: keys, effect: allow, subjects: {roles: [security]}, actions: [identity.read, identity.write]}
  - {id: policy, effect: allow, subjects: {roles: [policy-admin]}, actions: [policy.read, policy.write]}
limits:
  - {id: slow-minute, scope: {each: user, role: slow}, window: minute, requests: 2}
"""
BOUNDARY = "b0undary"


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("batches") / "policy.yaml"
    path.write_text(POLICY)
    return {
        "access": {"policy_file": path},
        "identity": {"api_key_pepper": SecretStr("p" * 40)},
        "batches": {"poll_s": 0.1, "lease_s": 1.5, "max_file_bytes": 20_000, "max_lines": 100},
    }


class Caller:
    def __init__(self, stage: Stage, headers: dict[str, str]) -> None:
        self._url, self._headers = f"{stage.url}/v1", headers

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
        sent = {**self._headers, **(headers or {})}
        return httpx2.request(method, self._url + path, headers=sent, timeout=30, **more)

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self.send(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    def upload(self, content: bytes, status: int = 200) -> Any:
        form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
        return self.ask("POST", "/files", status, **form)

    def start(self, count: int) -> str:
        lines = [
            {
                "custom_id": f"c-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]},
            }
            for number in range(count)
        ]
        file = self.upload("\n".join(map(json.dumps, lines)).encode())
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return str(self.ask("POST", "/batches", json=body)["id"])

    def batch(self, batch_id: str) -> Any:
        return self.ask("GET", f"/batches/{batch_id}")

    def until(self, batch_id: str, done: int | None = None) -> Any:
        """Until so many lines have a result, or the batch has ended."""
        for _ in range(600):
            found = self.batch(batch_id)
            counts = found["request_counts"]
            if found["status"] in ("completed", "failed", "expired", "cancelled"):
                return found
            if done is not None and counts["completed"] + counts["failed"] >= done:
                return found
            time.sleep(0.05)
        raise AssertionError(found)

    def results(self, file_id: str) -> list[Any]:
        answer = self.send("GET", f"/files/{file_id}/content")
        assert answer.status_code == 200
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def ana(stage: Stage) -> Caller:
    return Caller(stage, stage.headers("writer", sub="u-ana"))


def test_who_may_not_use_batches_is_refused_and_on_record(stage: Stage) -> None:
    reader = Caller(stage, stage.headers("reader", sub="u-reader"))
    for method, path in (("POST", "/files"), ("GET", "/files"), ("POST", "/batches"), ("GET", "/batches")):
        assert reader.ask(method, path, 403)["error"]["code"] == "not_permitted"
    rows = apart(_events(stage.database_url, "u-reader", 4))
    assert {(row["action"], row["decision"], row["deny_code"]) for row in rows} == {
        ("batches.use", "deny", "not_permitted")
    }


def test_uploads_reads_and_deletions_are_on_record(stage: Stage) -> None:
    caller = Caller(stage, stage.headers("writer", sub="u-recorded"))
    file_id = caller.upload(b"{}")["id"]
    caller.ask("GET", f"/files/{file_id}")
    assert caller.results(file_id) == [{}]
    caller.ask("DELETE", f"/files/{file_id}")
    caller.ask("DELETE", f"/files/{file_id}", 404)
    rows = apart(_events(stage.database_url, "u-recorded", 5))
    assert [(row["phase"], row["target"], row["http_status"]) for row in rows] == [
        ("admin", f"files/{file_id}", 200),
        ("access", f"files/{file_id}", 200),
        ("access", f"files/{file_id}/content", 200),
        ("admin", f"files/{file_id}", 200),
        ("admin", f"files/{file_id}", 404),
    ]


def test_each_line_is_a_request_of_its_own_on_record(ana: Caller, stage: Stage) -> None:
    ended = ana.until(batch_id := ana.start(2))
    first, second = ana.results(ended["output_file_id"])
    for number, result in enumerate((first, second), 1):
        intent, completion = stage.records(result["response"]["request_id"])
        assert (intent["subject"], intent["action"], intent["route"]) == ("u-ana", "chat", "/v1/chat/completions")
        assert json.loads(intent["personal"])["client_request_id"] == f"{batch_id}/{number}"
        assert completion["outcome"] == "ok"


def test_a_full_limit_burns_no_line(stage: Stage) -> None:
    caller = Caller(stage, stage.headers("slow", sub="u-slow"))
    batch_id = caller.start(4)
    caller.until(batch_id, done=2)
    time.sleep(0.5)  # several looks of the worker
    waiting = caller.batch(batch_id)
    assert (waiting["status"], waiting["request_counts"]) == ("in_progress", {"total": 4, "completed": 2, "failed": 0})
    caller.ask("POST", f"/batches/{batch_id}/cancel")
    assert caller.until(batch_id)["status"] == "cancelled"


def test_a_revoked_caller_ends_a_batch_while_it_runs(stage: Stage) -> None:
    caller = Caller(stage, stage.headers("writer", sub="u-leaver"))
    stage.upstream.mode, stage.upstream.delay_s = "late", 0.3
    batch_id = caller.start(50)
    caller.until(batch_id, done=1)
    stage.revoke("u-leaver")
    status, errors, answered = apart(_end(stage.database_url, batch_id))
    assert (status, json.loads(errors)[0]["code"]) == ("failed", "token_revoked")
    assert answered < 50


def test_a_policy_that_changes_decides_the_lines_that_are_left(ana: Caller, stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "late", 0.3
    batch_id = ana.start(30)
    ana.until(batch_id, done=1)
    url, admin = f"{stage.url}/admin/v1/policies/current", stage.headers("policy-admin", sub="u-pa")
    tag = httpx2.get(url, headers=admin).headers["etag"]
    for text in (POLICY.replace("models: {ids: [mini]}", "models: {ids: [maxi]}"), POLICY):
        headers = {**admin, "if-match": tag, "content-type": "application/yaml"}
        changed = httpx2.put(url, content=text, headers=headers)
        assert changed.status_code == 200, changed.text
        tag = changed.headers["etag"]
        if text is not POLICY:
            ended = ana.until(batch_id)
    assert ended["status"] == "completed"
    assert ended["request_counts"]["failed"] > 0
    assert ended["request_counts"]["completed"] + ended["request_counts"]["failed"] == 30
    refused = ana.results(ended["error_file_id"])[-1]["response"]
    assert (refused["status_code"], refused["body"]["error"]["code"]) == (403, "model_not_permitted")


def test_keys_act_for_their_account_and_end_with_it(stage: Stage) -> None:
    admin = stage.headers("security", "writer", sub="u-sec")
    url = f"{stage.url}/admin/v1/service-accounts"
    made = httpx2.post(url, json={"name": "nightly", "roles": ["writer"]}, headers=admin)
    account, etag = made.json(), made.headers["etag"]
    one, two = (
        Caller(stage, {"x-api-key": httpx2.post(f"{url}/{account['id']}/keys", json=body, headers=admin).json()["key"]})
        for body in ({"name": "one"}, {"name": "two"})
    )
    stage.upstream.mode, stage.upstream.delay_s = "late", 0.3
    batch_id = one.start(50)
    assert two.batch(batch_id)["id"] == batch_id
    one.until(batch_id, done=1)
    taken = httpx2.patch(f"{url}/{account['id']}", json={"disabled": True}, headers={**admin, "if-match": etag})
    assert taken.status_code == 200, taken.text
    status, errors, _ = apart(_end(stage.database_url, batch_id))
    assert (status, json.loads(errors)[0]["code"]) == ("failed", "token_revoked")


# ------------------------------------------------------------------------------------------------------ uploads


def part(name: str, content: str, extra: str = "") -> str:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n{content}\r\n'


END = f"--{BOUNDARY}--\r\n"
FILE = part("file", "{}", '; filename="in.jsonl"')
PURPOSE = part("purpose", "batch")


@pytest.mark.parametrize("order", [FILE + PURPOSE, PURPOSE + FILE], ids=["file first", "purpose first"])
def test_a_form_may_have_its_fields_in_any_order(ana: Caller, order: str) -> None:
    assert ana.ask("POST", "/files", content=order + END, headers=form())["bytes"] == 2


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (FILE + END, "missing_required_parameter", "purpose"),
        (PURPOSE + END, "missing_required_parameter", "file"),
        (FILE + PURPOSE, "invalid_form", None),
        (FILE + FILE + PURPOSE + END, "invalid_form", "file"),
        (PURPOSE + PURPOSE + FILE + END, "invalid_form", "purpose"),
        (part("purpose", "x" * 500) + END, "invalid_form", "purpose"),
        (part("model", "mini") + FILE + PURPOSE + END, "unsupported_parameter", "model"),
        (part("file", "", '; filename="a"') + PURPOSE + END, "empty_file", "file"),
        (part("file", "\n" * 101, '; filename="a"') + PURPOSE + END, "too_many_lines", "file"),
        (part("purpose", "x") * 9 + END, "invalid_form", "purpose"),
        ("no form at all", "invalid_form", None),
        ("", "invalid_form", None),
        (f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n{END}", "invalid_form", None),
        (f"--{BOUNDARY}\r\n{'a' * 9000}: b\r\n\r\nx\r\n{END}", "invalid_form", None),
        (FILE + PURPOSE + part("expires_after[anchor]", "created_at") + END, "invalid_value", "expires_after.seconds"),
        (FILE + PURPOSE + part("expires_after[seconds]", "9000") + END, "invalid_value", "expires_after.anchor"),
    ],
)  # fmt: skip
def test_what_is_no_such_form_is_refused_and_leaves_nothing(
    stage: Stage, body: str, code: str, param: str | None
) -> None:
    caller = Caller(stage, stage.headers("writer", sub="u-forms"))
    error = caller.ask("POST", "/files", 400, content=body, headers=form())["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert caller.ask("GET", "/files")["data"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "multipart/form-data"},
        {"content-type": f"multipart/form-data; boundary={BOUNDARY}", "content-encoding": "gzip"},
    ],
)
def test_other_bodies_are_415(ana: Caller, headers: dict[str, str]) -> None:
    ana.ask("POST", "/files", 415, content=FILE + PURPOSE + END, headers=headers)


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_too_large_is_413(ana: Caller, announced: bool) -> None:
    body = (part("file", "x" * 90_000, '; filename="a"') + PURPOSE + END).encode()
    content: Any = body if announced else iter([body[:1000], body[1000:]])
    assert ana.ask("POST", "/files", 413, content=content, headers=form())["error"]["param"] == "file"


def form() -> dict[str, str]:
    return {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


async def _events(url: str, subject: str, expect: int) -> list[Any]:
    connection = await _connect(url)
    try:
        for _ in range(200):
            rows = await connection.fetch("SELECT * FROM audit_event WHERE subject = $1 ORDER BY ts, node_seq", subject)
            if len(rows) >= expect:
                return list(rows)
            await asyncio.sleep(0.05)
        return list(rows)
    finally:
        await connection.close()


async def _end(url: str, batch_id: str) -> tuple[str, str, int]:
    """Status, errors and answered lines of a batch whose caller cannot ask any more."""
    connection = await _connect(url)
    try:
        for _ in range(200):
            row = await connection.fetchrow("SELECT * FROM batch WHERE id = $1", batch_id)
            if row["ended_at"] is not None:
                break
            await asyncio.sleep(0.05)
        return row["status"], row["errors"], row["completed"] + row["failed"]
    finally:
        await connection.close()
