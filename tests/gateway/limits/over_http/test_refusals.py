"""No refusal is free, over HTTP on a real Valkey: whatever is wrong, a caller ends in 429 under a sliding limit.

The window is a long one, so that none begins anew within a test.
"""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
LIMIT = 6
POLICY = f"""
apiVersion: esclusa/v1
kind: PolicySet
metadata: {{name: refusals}}
roles: {{works: {{}}, watched: {{}}}}
rules:
  - {{id: works, effect: allow, subjects: {{roles: [works]}}, actions: [chat], models: {{ids: [mini]}}}}
  - {{id: watched, effect: allow, subjects: {{roles: [watched]}}, actions: [chat], models: {{ids: [maxi]}},
     obligations: {{redaction: redact}}}}
limits:
  - {{id: user, scope: {{each: user}}, window: 80000s, sliding: true, requests: {LIMIT}, tokens: 100000, concurrent: 4}}
"""
_people = itertools.count(1)


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("refusals") / "policy.yaml"
    path.write_text(POLICY)
    return {"access": {"policy_file": path}, "guardrails": {"timeout_ms": 1}}


def body(model: str = "mini", *contents: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": one} for one in contents]}).encode()


def person(stage: Stage, role: str = "works", sub: str | None = None) -> dict[str, str]:
    who = stage.headers(role, sub=sub or f"u-refused-{next(_people)}")
    return {**who, "content-type": "application/json"}


def statuses(stage: Stage, who: dict[str, str], content: bytes, times: int, **headers: str) -> list[tuple[int, str]]:
    with httpx2.Client(timeout=60) as client:
        answers = [client.post(stage.url + PATH, content=content, headers={**who, **headers}) for _ in range(times)]
    return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]


@pytest.mark.parametrize(
    ("content", "headers", "refusal"),
    [
        pytest.param(b"{", {}, (400, "invalid_json"), id="no JSON"),
        pytest.param(body("mini"), {}, (400, "invalid_value"), id="no messages"),
        pytest.param(body("maxi", "Hola"), {}, (403, "model_not_permitted"), id="a forbidden model"),
        pytest.param(body("nowhere", "Hola"), {}, (404, "model_not_found"), id="no such model"),
        pytest.param(b"x", {"content-type": "text/plain"}, (415, "unsupported_media_type"), id="another medium"),
        pytest.param(b" " * (4 * 1024**2 + 1), {}, (413, "request_too_large"), id="too large a body"),
    ],
)
def test_whatever_is_refused_ends_in_429_and_stays_there(
    stage: Stage, content: bytes, headers: dict[str, str], refusal: tuple[int, str]
) -> None:
    who = person(stage)
    found = statuses(stage, who, content, LIMIT + 8, **headers)
    assert found[:LIMIT] == [refusal] * LIMIT
    assert set(found[LIMIT:]) == {(429, "requests_rate_limited")}
    assert statuses(stage, who, body("mini", "Hola"), 1) == [(429, "requests_rate_limited")]


def test_a_text_that_cannot_be_inspected_in_time_ends_in_429(stage: Stage) -> None:
    found = statuses(stage, person(stage, "watched"), body("maxi", "1 " * 1_000_000), LIMIT + 2)
    assert found[:LIMIT] == [(503, "guardrails_unavailable")] * LIMIT
    assert set(found[LIMIT:]) == {(429, "requests_rate_limited")}


def test_an_upload_that_breaks_off_is_one_request(stage: Stage) -> None:
    who = person(stage, sub="u-leaves")
    address = urlsplit(stage.url)
    head = f"POST {PATH} HTTP/1.1\r\nHost: h\r\n" + "".join(f"{name}: {value}\r\n" for name, value in who.items())
    for _ in range(LIMIT):
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            connection.sendall(head.encode() + b"content-length: 3000000\r\n\r\n" + b"x" * 2_900_000)
    assert all(row["http_status"] == 499 for row in stage.records_of("u-leaves", expect=2 * LIMIT))
    assert statuses(stage, who, body("mini", "Hola"), 1) == [(429, "requests_rate_limited")]


def test_the_record_tells_what_was_wrong_with_a_request_that_a_limit_refused(stage: Stage) -> None:
    who = person(stage)
    statuses(stage, who, b"{", LIMIT)
    with httpx2.Client(timeout=60) as client:
        answer = client.post(stage.url + PATH, content=b"{", headers=who)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    *_, completion = stage.records(answer.headers["x-request-id"])
    assert (completion["http_status"], completion["error_code"]) == (429, "requests_rate_limited")
    assert "in place of 400 invalid_json" in completion["personal"]
