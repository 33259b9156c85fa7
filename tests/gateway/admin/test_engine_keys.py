"""An engine is operated while Postgres is away: only the `Idempotency-Key` needs the database, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from gateway.admin import engines
from gateway.admin.guard import PermissionGuard
from gateway.api.http.errors import install_handlers
from gateway.flow.operation import EngineAction, EngineReport
from gateway.storage.idempotency import IdempotencyStore
from gateway.storage.postgres import make_engine
from tests.fakes.doors import KnownCallers, RoleGrants
from tests.fakes.exchanges import context
from tests.fakes.policy_stage import CALLERS, RememberingAudit

NOWHERE = "postgresql://nobody:x@127.0.0.1:1/none"


class OneEngine:
    """An operator whose engine takes every action at once."""

    def __init__(self) -> None:
        self.one = EngineReport("tiny", "ready", "ready", 100.0)

    def reports(self) -> tuple[EngineReport, ...]:
        return (self.one,)

    def report(self, model: str) -> EngineReport | None:
        return self.one if model == self.one.model else None

    async def act(self, model: str, action: EngineAction) -> EngineReport:
        self.one = replace(self.one, state={"pause": "paused", "resume": "ready"}[action.value])
        return self.one

    async def resume_paused(self) -> None: ...


class Desk:
    def __init__(self, client: httpx2.AsyncClient, operator: OneEngine, audit: RememberingAudit) -> None:
        self._client, self.operator, self.audit = client, operator, audit

    async def post(self, verb: str, **headers: str) -> httpx2.Response:
        sent = {"authorization": "Bearer oscar", **headers}
        return await self._client.post(f"/admin/v1/engines/tiny:{verb}", headers=sent)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    away, operator, audit = make_engine(NOWHERE), OneEngine(), RememberingAudit()
    grants = RoleGrants({"operator": frozenset({"engine.operate"})})
    guard = PermissionGuard(KnownCallers(CALLERS), grants, audit)  # type: ignore[arg-type]
    app = FastAPI()
    install_handlers(app)
    app.include_router(engines.routes(operator, IdempotencyStore(away), guard, node_id="node-a"))

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["context"] = context()
        await app(scope, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=with_context), base_url="http://gw") as client:
        yield Desk(client, operator, audit)
    await away.dispose()


async def test_with_a_key_nothing_is_done_and_the_database_is_named(desk: Desk) -> None:
    answer = await desk.post("pause", **{"idempotency-key": "night-1"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "database_unavailable")
    assert "without the key" in error["hint"]
    assert desk.operator.one.state == "ready"
    assert [(event.kind, event.status, event.error_code) for event in desk.audit.events] == [
        ("admin", 503, "database_unavailable")
    ]


async def test_without_a_key_no_database_is_needed(desk: Desk) -> None:
    answer = await desk.post("pause")
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")
