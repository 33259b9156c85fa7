"""Text completions and embeddings over HTTP, through the same rules as chat."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage


def test_a_text_completion_has_its_own_shape(stage: Stage) -> None:
    body = httpx2.post(
        stage.url + "/v1/completions", json={"model": "mini", "prompt": "Érase"}, headers=stage.headers()
    ).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == "Hola, mundo!"


def test_a_text_completion_streams_without_roles(stage: Stage) -> None:
    ask = {"model": "mini", "prompt": "Érase", "stream": True}
    text = httpx2.post(stage.url + "/v1/completions", json=ask, headers=stage.headers()).text
    *frames, done = [line[6:] for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    assert "".join(json.loads(frame)["choices"][0]["text"] for frame in frames) == "Hola, mundo!"
    assert "role" not in text


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_embeddings_come_as_numbers_or_packed(stage: Stage, encoding: str | None) -> None:
    ask = {"model": "embed", "input": ["uno", "dos"]} | ({"encoding_format": encoding} if encoding else {})
    response = httpx2.post(stage.url + "/v1/embeddings", json=ask, headers=stage.headers())
    first, second = (row["embedding"] for row in response.json()["data"])
    if encoding == "base64":
        first = list(struct.unpack("<3f", base64.b64decode(first)))
        second = list(struct.unpack("<3f", base64.b64decode(second)))
    assert (first, second) == ([0.5, -0.25, 0.0], [0.5, -0.25, 1.0])
    assert response.json()["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    _, completion = stage.records(response.headers["x-request-id"])
    assert (completion["action"], completion["tokens_in"], completion["outcome"]) == ("embeddings", 6, "ok")


def test_a_chat_model_serves_no_embeddings(stage: Stage) -> None:
    response = httpx2.post(stage.url + "/v1/embeddings", json={"model": "mini", "input": "x"}, headers=stage.headers())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_action")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_every_inference_route_runs_the_same_policy(stage: Stage, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
        "/v1/embeddings": {"input": "x"},
        "/v1/responses": {"input": "x"},
    }
    body = bodies[path]
    model = "embed" if path.endswith("embeddings") else "maxi"
    refused = httpx2.post(stage.url + path, json={"model": model, **body}, headers=stage.headers("employee"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_permitted")
    allowed = httpx2.post(stage.url + path, json={"model": model, **body}, headers=stage.headers("analyst"))
    assert allowed.status_code == 200


@pytest.mark.parametrize("model", ["MINI", " mini", "mini ", "mini\u200b", "*", "min*", "up-mini", "ｍini"])
def test_a_name_that_only_looks_like_a_model_is_unknown(stage: Stage, model: str) -> None:
    ask = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    response = httpx2.post(stage.url + "/v1/chat/completions", json=ask, headers=stage.headers())
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_nul_characters_survive_into_the_record(stage: Stage) -> None:
    ask = {"model": "mini", "messages": [{"role": "user", "content": "a\u0000b"}], "user": "u\u0000"}
    response = httpx2.post(stage.url + "/v1/chat/completions", json=ask, headers=stage.headers())
    assert response.status_code == 200
    assert len(stage.records(response.headers["x-request-id"])) == 2
