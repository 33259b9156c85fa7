"""When a crowd has taken every place, an administrator still revokes the one who fills it."""

from __future__ import annotations

import threading
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

ASK = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": True}


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    return {"http": {"port": 0, "metrics_port": None, "shutdown_grace_s": 5.0, "max_concurrent_requests": 2}}


class Held(threading.Thread):
    """A client that reads a slow stream to its end."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage, self.begun, self.text = stage, threading.Event(), ""

    def run(self) -> None:
        url, headers = f"{self._stage.url}/v1/chat/completions", self._stage.headers(sub="u-crowd")
        with httpx2.stream("POST", url, json=ASK, headers=headers, timeout=60) as answer:
            for piece in answer.iter_text():
                self.text += piece
                self.begun.set()


def test_an_administrator_revokes_the_crowd_that_has_taken_every_place(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.05
    stage.upstream.words = tuple(f"w{number} " for number in range(2000))
    crowd = [Held(stage) for _ in range(2)]
    for client in crowd:
        client.start()
    assert all(client.begun.wait(20) for client in crowd)
    refused = httpx2.get(f"{stage.url}/v1/models", headers=stage.headers())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert httpx2.get(f"{stage.url}/readyz").status_code == 200
    assert httpx2.get(f"{stage.url}/admin/v1/revocations").status_code == 401  # a stranger, quickly
    stage.revoke("u-crowd")
    for client in crowd:
        client.join(20)
        assert not client.is_alive()
        assert '"stop":"revoked"' in client.text
    assert httpx2.get(f"{stage.url}/v1/models", headers=stage.headers()).status_code == 200
