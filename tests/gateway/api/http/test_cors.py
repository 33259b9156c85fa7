"""Cross-origin requests: off by default; where an origin is named, its pages may call `/v1` and nothing else."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from gateway.http_settings import HttpSettings
from tests.fakes.stage import Stage

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    http = {"port": 0, "metrics_port": None, "shutdown_grace_s": 5.0, "cors_origins": (PAGE,)}
    return {"http": http}


def test_a_preflight_needs_no_credential_and_allows_what_clients_send(stage: Stage) -> None:
    answer = httpx2.request("OPTIONS", f"{stage.url}/v1/chat/completions", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_of_that_origin_reads_answers_and_their_headers(stage: Stage, stream: bool) -> None:
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": stream}
    headers = stage.headers() | {"origin": PAGE}
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_a_refusal_can_be_read_too(stage: Stage) -> None:
    answer = httpx2.get(f"{stage.url}/v1/models", headers={"origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, PAGE)


def test_another_origin_gets_nothing(stage: Stage) -> None:
    answer = httpx2.request(
        "OPTIONS", f"{stage.url}/v1/models", headers=PREFLIGHT | {"origin": "https://evil.example.com"}
    )
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/admin/v1/policies/current", "/livez", "/openapi.json"])
def test_other_paths_stay_closed_to_pages(stage: Stage, path: str) -> None:
    for method, headers in (("OPTIONS", PREFLIGHT), ("GET", stage.headers() | {"origin": PAGE})):
        answer = httpx2.request(method, stage.url + path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a.example.com/", "https://A.example.com", "null", ""])
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValidationError, match="web origin"):
        HttpSettings(cors_origins=(origin,))


def test_no_origin_is_allowed_by_default() -> None:
    assert HttpSettings().cors_origins == ()
