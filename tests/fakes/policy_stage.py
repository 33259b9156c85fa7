"""The policy routes on a real database, with callers a test names by their token and admin events it can read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from gateway.access.history.editor import PolicyEditor, SeenAs, nobody
from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.admin import models
from gateway.admin.guard import PermissionGuard
from gateway.admin.policies import authz
from gateway.admin.policies import routes as policies
from gateway.api.http.errors import install_handlers
from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.stages import Concluded, Exchange
from gateway.flow.values import AdminEvent, ModelCard, PastDecision, Principal
from gateway.settings import AccessSettings
from gateway.storage.postgres import make_engine
from tests.fakes.doors import KnownCallers
from tests.fakes.exchanges import context

ROOT = Path(__file__).parents[2]
SEED = ROOT / "policies" / "default.yaml"
CATALOG = (
    ModelCard("smollm2-135m-instruct", "local", tier="small"),
    ModelCard("qwen2.5-coder-0.5b-instruct", "local", tier="large"),
    ModelCard("auto", "router", virtual=True),
    ModelCard("all-minilm-l6-v2", "local", actions=("embeddings",)),
    ModelCard("esclusa-guardrails", "guardrails", actions=("moderations",)),
)
ISSUER = "https://idp.test"


def person(name: str, *roles: str, **more: Any) -> Principal:
    return Principal(tenant="acme", issuer=ISSUER, subject=name, roles=frozenset(roles), **more)


CALLERS: Mapping[str, Principal] = {
    "petra": person("petra", "policy-admin"),
    "pablo": person("pablo", "policy-admin"),
    "plato": person("plato", "platform-admin"),
    "anita": person("anita", "analyst"),
    "elena": person("elena", "employee"),
    "aldo": person("aldo", "auditor"),
    "oscar": person("oscar", "operator"),
    "celia": person("celia", "content-reader"),
}


class RememberingAudit:
    """An audit log that keeps admin events in a list."""

    def __init__(self) -> None:
        self.events: list[AdminEvent] = []

    async def admin(self, event: AdminEvent) -> None:
        self.events.append(event)

    async def intent(self, exchange: Exchange) -> None: ...

    async def completion(self, exchange: Concluded) -> None: ...


class RecordedPast:
    def __init__(self, decisions: Sequence[PastDecision]) -> None:
        self._decisions = decisions

    async def recent(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int,
        tenants: tuple[str, ...] | None = None,
    ) -> Sequence[PastDecision]:
        seen = [d for d in self._decisions if tenants is None or d.principal.tenant in tenants]
        return [d for d in seen if (since is None or d.at >= since) and (until is None or d.at < until)][:limit]


@dataclass
class PolicyStage:
    client: httpx2.AsyncClient
    service: AccessService
    audit: RememberingAudit
    app: Any
    routes: FastAPI
    events: list[AdminEvent] = field(init=False)

    def __post_init__(self) -> None:
        self.events = self.audit.events

    async def call(self, method: str, path: str, token: str = "petra", **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
        return await self.client.request(method, f"/admin/v1{path}", headers=headers, **options)

    async def etag(self) -> str:
        return (await self.call("GET", "/policies/current")).headers["etag"]

    async def put(self, text: str, token: str = "petra", etag: str | None = None, **headers: str) -> httpx2.Response:
        sent = {"content-type": "application/yaml", "if-match": etag or await self.etag()}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("PUT", "/policies/current", token, content=text.encode(), headers=sent)


@asynccontextmanager
async def policy_stage(
    database_url: str,
    *,
    past: Sequence[PastDecision] = (),
    seed: Path = SEED,
    callers: Mapping[str, Principal] = CALLERS,
    seen: SeenAs = nobody,
    **settings: Any,
) -> AsyncIterator[PolicyStage]:
    engine = make_engine(database_url)
    service = AccessService(
        catalog=CATALOG,
        clock=SystemClock(),
        repository=PolicyRepository(engine),
        seed=seed,
        settings=AccessSettings(**settings),
    )
    await service.start()
    audit = RememberingAudit()
    guard = PermissionGuard(KnownCallers(callers), service, audit)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    install_handlers(app)
    editor = PolicyEditor(service, SystemIds(), seen=seen)
    app.include_router(policies.routes(service, editor, guard, past=RecordedPast(past)))
    app.include_router(authz.routes(service, guard))
    app.include_router(models.routes(service, guard))

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["context"] = replace(
            context(), route=scope["path"], received_at=SystemClock().now()
        )
        await app(scope, receive, send)

    transport = httpx2.ASGITransport(app=with_context)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gw") as client:
        yield PolicyStage(client, service, audit, with_context, app)
    await service.close()
    await engine.dispose()
