"""Two reverse proxies that share their connections to the gateway among callers: nobody chooses another's answer."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.fakes.raw_http import RawClient
from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


@pytest.fixture
def front(proxy_port: int) -> str:
    return f"http://127.0.0.1:{proxy_port}"


def inner_request(stage: Stage) -> bytes:
    """What the attacker wants to be answered to somebody else."""
    body = json.dumps(ASK).encode()
    token = stage.token(sub="u-attacker").encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (token, len(body), body)
    )


def attack(stage: Stage, wish: str) -> bytes:
    body = b"\r\n" * 10_000 + inner_request(stage)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.token(sub='u-attacker')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{wish}\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize(
    "wish",
    ["Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"],
)
def test_a_wish_to_upgrade_chooses_nobody_elses_answer(stage: Stage, front: str, wish: str) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.02
    for _ in range(4):
        with RawClient(front) as attacker:
            attacker.send(attack(stage, wish))
            attacker.wait(0.05)
            models = httpx2.get(f"{front}/v1/models", headers=stage.headers(sub="u-victim"))
            chat = httpx2.post(front + PATH, json={**ASK, "max_tokens": 3}, headers=stage.headers(sub="u-victim"))
        assert (models.status_code, models.json()["object"]) == (200, "list")
        assert (chat.status_code, chat.json()["object"]) == (200, "chat.completion")
        _, completion = stage.records(chat.headers["x-request-id"])
        assert completion["subject"] == "u-victim"
    records = stage.records_of("u-attacker", expect=1000, timeout_s=0.5)
    assert all(record["model_served"] is None for record in records), "the hidden request ran"


def test_callers_who_share_connections_get_their_own_answers(stage: Stage, front: str) -> None:
    for number in range(20):
        headers = stage.headers(sub=f"u-{number % 3}")
        if number % 4 == 0:
            assert httpx2.post(front + PATH, json={**ASK, "model": "unknown"}, headers=headers).status_code == 404
        elif number % 4 == 1:
            assert httpx2.post(front + PATH, json=ASK).status_code == 401
        else:
            answer = httpx2.post(front + PATH, json=ASK, headers=headers)
            _, completion = stage.records(answer.headers["x-request-id"])
            assert (answer.status_code, completion["subject"]) == (200, f"u-{number % 3}")


def test_a_stream_passes_whole(stage: Stage, front: str) -> None:
    answer = httpx2.post(front + PATH, json={**ASK, "stream": True}, headers=stage.headers())
    assert answer.text.endswith("data: [DONE]\n\n")


def test_a_caller_who_leaves_is_noticed_through_the_proxy(stage: Stage, front: str) -> None:
    stage.upstream.mode = "hang"
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(front + PATH, json=ASK, headers=stage.headers(sub="u-leaves"), timeout=0.5)
    rows = stage.records_of("u-leaves")
    assert {row["outcome"] for row in rows if row["phase"] == "completion"} == {"client_disconnect"}
