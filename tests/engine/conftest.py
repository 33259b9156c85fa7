"""Engines over the fake runner, closed at the end of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from engine import AsyncEngine
from tests.fakes.engines import config, loader_of
from tests.fakes.runner import FakeRunner

Start = Callable[..., Awaitable[AsyncEngine]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    engines: list[AsyncEngine] = []

    async def make(runner: Any = None, *, options: dict[str, Any] | None = None, **changes: Any) -> AsyncEngine:
        engine = AsyncEngine(config(**changes), loader=loader_of(runner or FakeRunner()), **(options or {}))
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.close()
