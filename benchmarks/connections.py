"""What healthy traffic feels while other clients hold connections, are slow, or leave: the 99th percentile beside them.

    python -m benchmarks.connections [--seconds 6] [--rounds 3] [--json]

The gateway with everything on (`gateway.benchmark.systems`) on one core; stores, a scripted upstream and this program
on the other. The healthy client sends 200 chats a second over four kept connections; the others come from addresses of
their own (127.0.1.x), as the limit of connections per address would stop them early otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gateway.benchmark.ports import free_port, wait_for_port
from gateway.benchmark.suite import MESSAGES
from gateway.benchmark.systems import Target, esclusa

IDLE, SLOW, RESETS = 5000, 200, 200
HEALTHY_CONNECTIONS, PERIOD_S = 4, 0.02
SETTLE_S = 1.0
ABORT = struct.pack("ii", 1, 0)
"""`SO_LINGER` with zero seconds: closing sends a reset."""


@dataclass(frozen=True, slots=True)
class Row:
    beside: str
    p50_ms: float
    p99_ms: float
    requests: int
    errors: int
    others_open: int
    """Connections of the others that the gateway still held at the end."""


class Client:
    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        self.host, self.port, self.path = parts.hostname or "", parts.port or 80, parts.path
        self.fields = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())

    def head(self, length: int) -> bytes:
        lines = f"POST {self.path} HTTP/1.1\r\nhost: {self.host}\r\n{self.fields}content-type: application/json\r\n"
        return f"{lines}content-length: {length}\r\n\r\n".encode()

    def chat(self, stream: bool = False) -> bytes:
        body = json.dumps({"model": "bench", "messages": MESSAGES, "max_tokens": 64, "stream": stream}).encode()
        return self.head(len(body)) + body

    async def connect(self, number: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        source = None if number is None else (f"127.0.1.{number // 500 + 1}", 0)
        return await asyncio.open_connection(self.host, self.port, local_addr=source)


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


async def _healthy(client: Client, seconds: float, times: list[float], errors: list[str]) -> None:
    reader, writer = await client.connect()
    raw, until = client.chat(), time.monotonic() + seconds
    while (started := time.monotonic()) < until:
        writer.write(raw)
        status = await _answer(reader)
        times.append(time.monotonic() - started)
        if status != 200:
            errors.append(str(status))
        await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - started)))
    writer.close()


Others = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def _opened(client: Client, count: int, first: bytes) -> Others:
    others: Others = []
    for number in range(count):
        with suppress(OSError):
            reader, writer = await client.connect(number)
            writer.write(first)
            others.append((reader, writer))
    return others


async def _drip(others: Others) -> None:
    """One byte a second on each."""
    while True:
        for _, writer in others:
            with suppress(OSError):
                writer.write(b"x")
        await asyncio.sleep(1)


async def _leave(client: Client, seconds: float) -> None:
    """Streams whose client resets the connection after the first bytes of the answer, spread over the time."""
    for number in range(RESETS):
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await client.connect(number)
            writer.write(client.chat(stream=True))
            begun = await reader.read(64)
            if not begun.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"a stream did not begin: {begun!r}")
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            writer.transport.abort()
        await asyncio.sleep(seconds / RESETS / 2)


@asynccontextmanager
async def _others(client: Client, beside: str, seconds: float) -> AsyncIterator[Others]:
    first = {"slow headers": f"POST {client.path} HTTP/1.1\r\nx-slow: ".encode(), "slow bodies": client.head(10_000)}
    count = {"idle sockets": IDLE, "slow headers": SLOW, "slow bodies": SLOW}.get(beside, 0)
    others = await _opened(client, count, first.get(beside, b""))
    running = [asyncio.create_task(_drip(others))] if beside in first else []
    if beside == "reset streams":
        running.append(asyncio.create_task(_leave(client, seconds)))
    try:
        await asyncio.sleep(SETTLE_S)
        yield others
    finally:
        for task in running:
            task.cancel()
        failed = [
            error for error in await asyncio.gather(*running, return_exceptions=True) if isinstance(error, Exception)
        ]
        if failed:
            raise failed[0]
        for _, writer in others:
            writer.transport.abort()
        await asyncio.sleep(1)


async def _row(client: Client, beside: str, seconds: float) -> Row:
    times: list[float] = []
    errors: list[str] = []
    async with _others(client, beside, seconds) as others:
        await asyncio.gather(*[_healthy(client, seconds, times, errors) for _ in range(HEALTHY_CONNECTIONS)])
        still = sum(not reader.at_eof() and reader.exception() is None for reader, _ in others)
    cuts = statistics.quantiles(times, n=100)
    return Row(beside, round(cuts[49] * 1e3, 2), round(cuts[98] * 1e3, 2), len(times), len(errors), still)


SITUATIONS = ("nobody", "idle sockets", "slow headers", "slow bodies", "reset streams")


def measure(seconds: float, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Medians over the rounds. Each round measures all situations, so that what the machine does meanwhile hits all."""
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="esclusa-bench-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)
        port = free_port()
        upstream = subprocess.Popen([sys.executable, "-m", "gateway.benchmark.upstream", str(port)])
        try:
            for pid in (upstream.pid, 0):
                os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))})
            wait_for_port(port, 10, upstream)
            with esclusa(port, scratch, "fast") as target:
                client = Client(target)
                asyncio.run(_row(client, "nobody", 2))
                for _ in range(rounds):
                    for beside in SITUATIONS:
                        row = asyncio.run(_row(client, beside, seconds))
                        say(f"beside {beside}: p50 {row.p50_ms} ms, p99 {row.p99_ms} ms, {row.errors} errors")
                        found.setdefault(beside, []).append(row)
        finally:
            upstream.kill()
            upstream.wait()
    middle = partial(sorted, key=lambda row: row.p99_ms)
    return [middle(rows)[len(rows) // 2] for rows in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each situation (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians over so many (default %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.seconds, options.rounds, lambda line: print(line, file=sys.stderr))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print("| beside | p50 ms | p99 ms | p99 over nobody's | requests | errors | others still open |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        ratio = row.p99_ms / rows[0].p99_ms
        print(f"| {row.beside} | {row.p50_ms} | {row.p99_ms} | {ratio:.2f} | {row.requests} | {row.errors} "
              f"| {row.others_open} |")  # fmt: skip


if __name__ == "__main__":
    main()
