"""Prompts over HTTP: what policy finds in them is flagged, redacted or refused on every route, and is on record."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

NIF = "12345678Z"
KEY = "AKIAIOSFODNN7EXAMPLE"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BODIES = {CHAT: ("mini", "messages"), COMPLETIONS: ("mini", "prompt"), EMBEDDINGS: ("embed", "input")}


def ask(stage: Stage, role: str, text: Any, path: str = CHAT, **changes: Any) -> httpx2.Response:
    model, field = BODIES[path]
    content = [{"role": "user", "content": text}] if path == CHAT and isinstance(text, str) else text
    body = {"model": model, field: content, **changes}
    return httpx2.post(stage.url + path, json=body, headers=stage.headers(role, sub=f"u-{role}"), timeout=30)


def sent(stage: Stage) -> str:
    (seen,) = stage.upstream.seen
    return json.dumps(seen.body, ensure_ascii=False)


def safety(stage: Stage, answer: httpx2.Response) -> list[dict[str, Any]]:
    _, completion = stage.records(answer.headers["x-request-id"])
    record = bytes(completion["rec"]).decode()
    assert NIF not in record
    assert KEY not in record
    found: list[dict[str, Any]] = json.loads(record).get("safety", [])
    return found


@pytest.mark.parametrize("path", BODIES)
def test_a_proven_number_is_refused_on_every_route_and_reaches_no_model(stage: Stage, path: str) -> None:
    answer = ask(stage, "blocked", f"El cliente {NIF} pide un préstamo", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "blocked_by_policy", "es_nif")
    assert NIF not in answer.text
    assert stage.upstream.seen == []


@pytest.mark.parametrize("path", BODIES)
def test_a_flagged_prompt_goes_on_unchanged_and_is_on_record(stage: Stage, path: str) -> None:
    answer = ask(stage, "flagged", f"El cliente {NIF} y la clave {KEY}", path)
    assert answer.status_code == 200
    assert NIF in sent(stage)
    found = safety(stage, answer)
    assert {(one["category"], one["count"], one["action"], one["direction"]) for one in found} == {
        ("es_nif", 1, "flag", "in"),
        ("aws_access_key", 1, "flag", "in"),
    }
