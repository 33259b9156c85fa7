"""Limiters on a real Valkey, each test in a keyspace of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.flow.context import SystemClock, SystemIds
from gateway.limits.service import LimitService
from gateway.limits.store import ValkeyStore
from gateway.local.valkey import PrivateValkey
from gateway.settings import LimitSettings
from gateway.storage.valkey import ValkeyLink

PATIENT_S = 5.0
"""For tests that are not about time: a busy machine must not look like a slow store."""
_numbers = itertools.count(1)

MakeLimiter = Callable[..., Awaitable[LimitService]]


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture
async def store(valkey_url: str, prefix: str) -> AsyncIterator[ValkeyStore]:
    opened = ValkeyStore(ValkeyLink(valkey_url), clock=SystemClock(), prefix=prefix, timeout_s=PATIENT_S)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def make_limiter(valkey_url: str, prefix: str) -> AsyncIterator[MakeLimiter]:
    made: list[LimitService] = []

    async def make(
        url: str = valkey_url, *, patience_s: float = PATIENT_S, start: bool = True, clock: Any = None, **options: Any
    ) -> LimitService:
        callbacks = {name: options.pop(name) for name in list(options) if name.startswith("on_") or "holder" in name}
        settings = LimitSettings(key_prefix=prefix, **options)
        clock = clock or SystemClock()
        store = ValkeyStore(ValkeyLink(url), clock=clock, prefix=prefix, timeout_s=patience_s)
        limiter = LimitService(
            store, clock=clock, ids=SystemIds(), settings=settings, patience_s=patience_s, **callbacks
        )
        if start:
            await limiter.start()
        made.append(limiter)
        return limiter

    yield make
    for limiter in made:
        await limiter.close()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[PrivateValkey]:
    """A server that this test may stop, freeze or restart."""
    server = PrivateValkey(tmp_path / "valkey", options={"appendonly": "no"})
    server.start()
    yield server
    server.stop()
