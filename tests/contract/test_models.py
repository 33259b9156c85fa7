"""`GET /v1/models`: what a client has to know of a model before it asks, for this caller."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage


@pytest.fixture(scope="module")
def stage_overrides(tiny_model_path: Any) -> dict[str, Any]:
    return {
        "models": (
            {
                "id": "tiny",
                "tier": "large",
                "path": str(tiny_model_path),
                "temperature": 0.3,
                "languages": ("en", "es"),
            },
            {"id": "mini", "tier": "small", "upstream": "up", "context_window": 512, "price_out": "1.5"},
            {"id": "embed", "upstream": "up", "actions": ("embeddings",), "created": 1_700_000_000},
        ),
        "engine": {"device": "cpu", "kv_cache_bytes": 8 << 20},
    }


def model(stage: Stage, name: str, *roles: str) -> dict[str, Any]:
    answer = httpx2.get(f"{stage.url}/v1/models/{name}", headers=stage.headers(*roles))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_local_model_says_what_its_files_say(stage: Stage) -> None:
    tiny = model(stage, "tiny", "analyst")
    assert tiny["max_model_len"] == tiny["context_length"] == tiny["x_esclusa"]["context_window"] > 0
    assert abs(tiny["created"] - time.time()) < 30 * 86_400
    assert tiny["sampling_defaults"]["temperature"] == 0.3
    assert tiny["languages"] == ["en", "es"]
    assert tiny["capabilities"] == {
        "chat": True,
        "completions": True,
        "embeddings": False,
        "moderations": False,
        "tools": True,
        "json_schema": True,
        "logprobs": True,
        "vision": False,
        "audio": False,
    }


def test_an_upstream_says_what_is_configured(stage: Stage) -> None:
    mini = model(stage, "mini")
    assert (mini["max_model_len"], mini["pricing"]["completion_micro"]) == (512, 1_500_000)
    assert mini["created"] > 1_700_000_000
    assert model(stage, "embed", "analyst")["created"] == 1_700_000_000
    assert model(stage, "embed", "analyst")["capabilities"]["chat"] is False


def test_a_routed_name_says_what_it_may_become_for_the_caller(stage: Stage) -> None:
    assert model(stage, "auto")["x_esclusa"]["resolves_to"] == ["tiny", "mini"]


def test_the_list_also_answers_with_a_slash_too_many(stage: Stage) -> None:
    plain, slash = (httpx2.get(stage.url + path, headers=stage.headers()) for path in ("/v1/models", "/v1/models/"))
    assert slash.status_code == 200
    assert slash.json() == plain.json()


@pytest.mark.parametrize(
    ("asked", "meant"), [("Tiny", "tiny"), ("openai/mini", "mini"), ("openai/auto", "auto"), ("minni", "mini")]
)
def test_a_name_that_is_nearly_one_is_told_the_right_one(stage: Stage, asked: str, meant: str) -> None:
    one = httpx2.get(f"{stage.url}/v1/models/{asked}", headers=stage.headers())
    body = {"model": asked, "messages": [{"role": "user", "content": "Hola"}]}
    chat = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers())
    for answer in (one, chat):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert f"`{meant}`" in answer.json()["error"]["hint"]


def test_a_name_is_not_near_to_a_model_that_the_caller_does_not_see(stage: Stage) -> None:
    answer = httpx2.get(f"{stage.url}/v1/models/embedd", headers=stage.headers("employee"))
    assert answer.status_code == 404
    assert "embed" not in answer.json()["error"]["hint"]
