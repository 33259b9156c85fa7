"""Two reverse proxies that share their connections to the gateway among callers: nobody chooses another's answer."""

from __future__ import annotations

import httpx2

from tests.fakes.stage import Stage

ASK = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


def test_an_ordinary_request_passes(stage: Stage, proxy_port: int) -> None:
    url = f"http://127.0.0.1:{proxy_port}/v1/chat/completions"
    assert httpx2.post(url, json=ASK, headers=stage.headers()).status_code == 200
