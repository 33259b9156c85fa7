"""Stores and workers of batches over a real Postgres; what a route would answer is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.bytes_sealer import BytesSealer
from gateway.audit.content_keys import ContentKeys
from gateway.batches.batch_store import BatchStore, NewBatch
from gateway.batches.database import Database
from gateway.batches.file_store import CHUNK, FileStore
from gateway.batches.line_store import LineStore
from gateway.batches.values import Batch, LeasedLine, LineAnswer, Origin, Owner, StoredFile
from gateway.batches.worker import BatchWorker
from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.values import Principal
from gateway.settings import BatchSettings
from gateway.storage.postgres import make_engine
from gateway.wiring.batches import KeyedSealer

ANA = Principal("acme", "https://idp", "ana", roles=frozenset({"analyst"}))
EVA = Principal("acme", "https://idp", "eva")
ENDPOINT = "/v1/chat/completions"
OK = LineAnswer(200, "r-1", b'{"object":"chat.completion"}')
SEALER = KeyedSealer(BytesSealer(ContentKeys("k1", {"k1": bytes(32)})))
SETTINGS = BatchSettings(poll_s=0.1, lease_s=0.9, concurrency=2)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    made = make_engine(database_url)
    yield made
    await made.dispose()


@dataclass
class Route:
    """Answers each line by the script for its `custom_id`: the answers in turn, the last one for ever."""

    answers: dict[str, list[LineAnswer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None
    """While set and not yet true, every line waits for it."""

    async def __call__(self, line: LeasedLine, raw: bytes) -> LineAnswer:
        assert json.loads(raw)["custom_id"] == line.custom_id
        self.asked.append(line.custom_id)
        if self.hold is not None:
            await self.hold.wait()
        script = self.answers.get(line.custom_id, [OK])
        return script.pop(0) if len(script) > 1 else script[0]


class Node:
    """What one node has of files and batches."""

    def __init__(self, engine: AsyncEngine, settings: BatchSettings = SETTINGS) -> None:
        database, self.ids, clock = Database(engine), SystemIds(), SystemClock()
        self.settings, self.route = settings, Route()
        self.files = FileStore(database, SEALER, settings, clock, self.ids)
        self.batches = BatchStore(database, self.files, settings, clock, self.ids, json.loads, max_line_bytes=1_000_000)
        self.lines = LineStore(database, SEALER, settings)
        self.worker = BatchWorker(self.batches, self.lines, self.files, self.route, settings, self.ids)

    async def store(self, content: bytes, owner: Principal = ANA) -> StoredFile:
        file = self.files.new(Owner.of(owner), "batch")
        await self.files.begin(file)
        for number in range(-(-len(content) // CHUNK)):
            piece = content[number * CHUNK :][:CHUNK]
            await self.files.append(file, number, piece, (number * CHUNK + len(piece), 0))
        return await self.files.finish(file, "in.jsonl", content.count(b"\n"), None)

    async def batch(self, *custom_ids: str, **body: Any) -> Batch:
        """A batch that is judged and may run."""
        content = b"".join(json.dumps(line(one, **body)).encode() + b"\n" for one in custom_ids)
        file = await self.store(content)
        made = await self.batches.create(ANA, NewBatch(file.id, ENDPOINT, {}), Origin())
        assert await self.batches.judge_next()
        return made

    async def now(self, batch: Batch) -> Batch:
        return await self.batches.get(batch.owner, batch.id)

    async def until(self, batch: Batch, true: Callable[[Batch], bool]) -> Batch:
        async with asyncio.timeout(30):  # a hang guard
            while not true(found := await self.now(batch)):  # noqa: ASYNC110 - the state is in the database
                await asyncio.sleep(0.02)
        return found

    async def running(self, count: int) -> None:
        """Returns once so many lines were asked."""
        async with asyncio.timeout(30):
            while len(self.route.asked) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def ended(self, batch: Batch) -> Batch:
        return await self.until(batch, lambda found: found.status in ("completed", "failed", "expired", "cancelled"))

    async def results(self, batch: Batch, file_id: str | None) -> Mapping[str, Any]:
        assert file_id is not None
        file = await self.files.get(batch.owner, file_id)
        content = b"".join([piece async for piece in self.files.content(file)])
        assert len(content) == file.bytes
        found = [json.loads(one) for one in content.splitlines()]
        assert len(found) == file.lines == len({one["custom_id"] for one in found})
        return {one["custom_id"]: one for one in found}


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "mini", **body}}


def refusal(status: int, code: str, **headers: str) -> LineAnswer:
    body = json.dumps({"error": {"code": code}}).encode()
    return LineAnswer(status, "r-1", body, {name.replace("_", "-"): value for name, value in headers.items()}, code)


@pytest.fixture
async def node(engine: AsyncEngine) -> AsyncIterator[Node]:
    made = Node(engine)
    yield made
    await made.worker.close()
