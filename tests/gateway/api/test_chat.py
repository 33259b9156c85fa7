"""Chat over HTTP: whole and streamed answers, their bytes, headers and records."""

from __future__ import annotations

import json

import httpx2
from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
ASK = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


def post(stage: Stage, body: dict, role: str = "analyst", **claims: str) -> httpx2.Response:
    return httpx2.post(stage.url + PATH, json=body, headers=stage.headers(role, **claims))


def events(response: httpx2.Response) -> list[dict | str]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_a_whole_answer_has_openais_shape(stage: Stage) -> None:
    response = post(stage, ASK)
    body = response.json()
    assert response.status_code == 200, body
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "mini"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hola, mundo!", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 15
