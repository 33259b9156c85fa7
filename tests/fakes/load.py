"""Callers: one request on one connection, what it got, and whether the trail tells the same."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

Rows = Callable[..., Awaitable[list[Any]]]


@dataclass
class Asked:
    """`done`: the whole answer arrived. `status` 0: the connection ended before a status did."""

    status: int = 0
    id: str | None = None
    done: bool = False
    code: str | None = None
    text: bytes = b""


async def ask(
    port: int,
    token: str,
    *,
    model: str = "mini",
    max_tokens: int = 20,
    stream: bool = True,
    abort_after: int | None = None,
    timeout_s: float = 60.0,
) -> Asked:
    """`abort_after`: hang up after so many events."""
    asked = Asked()
    writer: asyncio.StreamWriter | None = None
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "hola"}], "max_tokens": max_tokens, "stream": stream}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
            writer.write(head.encode() + body)
            got = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            asked.status = int(got.split(" ")[1])
            found = re.search(r"x-request-id: (\S+)", got, re.IGNORECASE)
            asked.id = found[1] if found else None
            while piece := await reader.read(65536):
                asked.text += piece
                if abort_after is not None and asked.text.count(b"data: ") >= abort_after:
                    writer.transport.abort()
                    break
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
    asked.done = (b"data: [DONE]" if stream and asked.status == 200 else b"}") in asked.text
    code = re.search(rb'"code": ?"([a-z_]+)"', asked.text)
    asked.code = code[1].decode() if code else None
    return asked


async def burst(port: int, token: str, count: int, *, at_once: int = 20, **how: Any) -> list[Asked]:
    gate = asyncio.Semaphore(at_once)

    async def one() -> Asked:
        async with gate:
            return await ask(port, token, **how)

    return await asyncio.gather(*(one() for _ in range(count)))


async def mixed(port: int, token: str, stop: asyncio.Event, *, workers: int = 24, seed: int = 1) -> list[Asked]:
    """Streams, whole answers, callers that hang up and refused requests, until `stop`."""
    chance = random.Random(seed)
    results: list[Asked] = []

    async def worker() -> None:
        while not stop.is_set():
            kind = chance.random()
            if kind < 0.6:
                asked = await ask(port, token, max_tokens=chance.choice([4, 20, 60]), timeout_s=30)
            elif kind < 0.8:
                asked = await ask(port, token, max_tokens=5, stream=False, timeout_s=30)
            elif kind < 0.9:
                asked = await ask(port, token, max_tokens=60, abort_after=3, timeout_s=30)
            else:
                asked = await ask(port, token, model="nothing", timeout_s=30)
            results.append(asked)
            if not asked.status:
                await asyncio.sleep(0.05)

    await asyncio.gather(*(worker() for _ in range(workers)))
    return results


@dataclass
class Trail:
    """Requests that were given an id, against the records of it."""

    ids: int = 0
    clean: int = 0
    """Exactly one intent and one completion."""
    outcomes: dict[str, int] = field(default_factory=dict)
    wrong: list[tuple[str, list[tuple[str, str | None]]]] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.ids - self.clean


async def reconcile(rows: Rows, asked: Sequence[Asked], *, patience_s: float = 30.0) -> Trail:
    """Waits until every request is clean, at most so long."""
    ids = [one.id for one in asked if one.id is not None]
    deadline = time.monotonic() + patience_s
    while True:
        trail = Trail(len(ids))
        found: list[Any] = []
        try:
            statement = "SELECT request_id::text, phase, outcome FROM audit_event WHERE request_id = ANY($1::uuid[])"
            found = await rows(statement, ids)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass  # Postgres is away: asked again below
        by: dict[str, list[tuple[str, str | None]]] = collections.defaultdict(list)
        for request, phase, outcome in found:
            by[request].append((phase, outcome))
        for request in ids:
            kinds = collections.Counter("completion" if phase == "denied" else phase for phase, _ in by[request])
            if (kinds["intent"], kinds["completion"]) == (1, 1):
                trail.clean += 1
            else:
                trail.wrong.append((request, by[request]))
        ends = [outcome or "-" for request in ids for phase, outcome in by[request] if phase != "intent"]
        trail.outcomes = dict(collections.Counter(ends))
        if not trail.wrong or time.monotonic() > deadline:
            return trail
        await asyncio.sleep(0.2)
