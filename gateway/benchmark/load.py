"""A closed-loop load on one URL: `python -m gateway.benchmark.load < job.json > figures.json`.

As many keep-alive connections as asked for, each sending its next request when the answer to the last has come.
Bounded in time; talks to loopback only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from gateway.benchmark.upstream import body_length

WARM_UP_S = 1.0


class Caller(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._load.frame)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end]
        if b"chunked" in head.lower():
            if not self._buffer.endswith(b"0\r\n\r\n"):
                return
        elif len(self._buffer) < end + 4 + body_length(head):
            return
        self._load.answered(self._sent_s, ok=head[9:12] == b"200", text=self._buffer)
        self._buffer = b""
        if time.perf_counter() < self._load.until_s:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if time.perf_counter() < self._load.until_s:
            self._load.errors += 1


class Load:
    def __init__(self, job: dict[str, Any]) -> None:
        parts = urlsplit(job["url"])
        if parts.hostname != "127.0.0.1" or parts.port is None:
            raise ValueError("the load generator talks to 127.0.0.1 only")
        self._address = (parts.hostname, parts.port)
        body = json.dumps(job["body"]).encode()
        lines = [f"POST {parts.path} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in {"content-type": "application/json", **job["headers"]}.items()]
        self.frame = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self._concurrency, self._duration_s = int(job["concurrency"]), float(job["duration_s"])
        self._latencies: list[float] = []
        self._from_s = self.until_s = 0.0
        self.errors = 0
        self.first_error = ""

    def answered(self, sent_s: float, *, ok: bool, text: bytes) -> None:
        now = time.perf_counter()
        if not ok:
            self.errors += 1
            self.first_error = self.first_error or text[:300].decode(errors="replace")
        elif now >= self._from_s:
            self._latencies.append(now - sent_s)

    async def run(self) -> dict[str, Any]:
        self._from_s = time.perf_counter() + WARM_UP_S
        self.until_s = self._from_s + self._duration_s
        loop = asyncio.get_running_loop()
        for _ in range(self._concurrency):
            await loop.create_connection(lambda: Caller(self), *self._address)
        await asyncio.sleep(WARM_UP_S + self._duration_s + 0.5)
        ordered = sorted(self._latencies)
        count = len(ordered)
        return {
            "requests_per_s": round(count / self._duration_s, 1),
            "p50_ms": round(1000 * ordered[count // 2], 3) if count else None,
            "p99_ms": round(1000 * ordered[min(count - 1, int(count * 0.99))], 3) if count else None,
            "errors": self.errors,
            "first_error": self.first_error,
        }


if __name__ == "__main__":
    json.dump(uvloop.run(Load(json.load(sys.stdin)).run()), sys.stdout)
