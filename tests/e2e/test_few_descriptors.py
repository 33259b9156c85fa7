"""A gateway process that may open few files: it admits what fits, says so, and resets nobody."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx2

from gateway.local.issuer import DevIssuer
from tests.e2e.test_life import Process, config, slow  # noqa: F401
from tests.fakes.stage import UpstreamThread, apart

CLIENTS = 150
LIMIT = 160


async def ask(port: int, token: str) -> tuple[int, str]:
    """Status and error code; (0, ...) for a connection that ended without an answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer {token}\r\n"
        head += f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.read(-1), 60)
        writer.close()
    except OSError as error:
        return 0, type(error).__name__
    if not answer:
        return 0, "nothing"
    status = int(answer[9:12])
    code = "" if status == 200 else answer.split(b'"code":"', 1)[1].split(b'"', 1)[0].decode()
    return status, code


async def crowd(port: int, token: str) -> list[tuple[int, str]]:
    return await asyncio.gather(*(ask(port, token) for _ in range(CLIENTS)))


def test_a_crowd_beyond_the_descriptors_is_served_or_told_to_come_back(
    config: tuple[Path, int],  # noqa: F811
    issuer: DevIssuer,
    upstream_thread: UpstreamThread,
) -> None:
    slow(upstream_thread, 20)
    process = Process(*config, descriptors=LIMIT)
    try:
        process.wait_ready()
        parts = httpx2.get(f"{process.url}/readyz").json()["parts"]
        answers = Counter(apart(crowd(config[1], issuer.mint("u-f", ["analyst"]))))
        again = apart(ask(config[1], issuer.mint("u-f", ["analyst"])))
    finally:
        process.kill()
    assert set(answers) <= {(200, ""), (503, "overloaded")}, answers
    assert answers[200, ""] > 0, answers  # how many depends on who comes while others are being served
    assert again == (200, "")
    assert parts["descriptors"] == "lowered"
