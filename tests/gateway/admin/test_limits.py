"""Usage and budgets over REST, on the counters of a real Valkey and the shipped policy in a real Postgres."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.admin import limits
from gateway.admin.guard import PermissionGuard
from gateway.api.http.errors import install_handlers
from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.values import LimitRule, Principal, Reservation
from gateway.limits.service import LimitService
from gateway.limits.store import ValkeyStore
from gateway.settings import AccessSettings, LimitSettings
from gateway.storage.postgres import make_engine
from gateway.storage.valkey import ValkeyLink
from tests.fakes.doors import KnownCallers
from tests.fakes.exchanges import context
from tests.fakes.limit_claims import CARD, asking, used
from tests.fakes.policy_stage import CALLERS, CATALOG, ISSUER, SEED, RememberingAudit

_numbers = itertools.count(1)
ELENA = Principal("acme", ISSUER, "elena", roles=frozenset({"employee"}), department="finanzas")


@dataclass
class Desk:
    client: httpx2.AsyncClient
    access: AccessService
    limiter: LimitService
    audit: RememberingAudit

    async def call(self, method: str, path: str, token: str = "plato", **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"}
        return await self.client.request(method, f"/admin/v1{path}", headers=headers, **options)

    def rules(self) -> tuple[LimitRule, ...]:
        """As a request of Elena's would meet them."""
        return self.access.decide(ELENA, "chat", CATALOG[0], replace(context(), received_at=SystemClock().now())).limits

    async def spend(self, prompt: int, output: int) -> None:
        reservation = await self.hold()
        await self.limiter.settle(reservation, used(prompt, output), 0)

    async def hold(self) -> Reservation:
        verdict = await self.limiter.reserve(self.rules(), asking(), CARD)
        assert verdict.reservation is not None
        return verdict.reservation


@pytest.fixture
async def desk(database_url: str, valkey_url: str) -> AsyncIterator[Desk]:
    engine, clock, audit = make_engine(database_url), SystemClock(), RememberingAudit()
    access = AccessService(
        catalog=CATALOG, clock=clock, repository=PolicyRepository(engine), seed=SEED, settings=AccessSettings()
    )
    settings = LimitSettings(key_prefix=f"admin-{next(_numbers)}")
    store = ValkeyStore(ValkeyLink(valkey_url), clock=clock, prefix=settings.key_prefix, timeout_s=5)
    limiter = LimitService(store, clock=clock, ids=SystemIds(), settings=settings, patience_s=5)
    await access.start()
    await limiter.start()
    callers = {**CALLERS, "foreign": replace(CALLERS["plato"], tenant="globex")}
    app = FastAPI()
    install_handlers(app)
    app.include_router(limits.routes(limiter, access, PermissionGuard(KnownCallers(callers), access, audit)))

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["context"] = replace(context(), route=scope["path"], received_at=clock.now())
        await app(scope, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=with_context), base_url="http://gw") as client:
        yield Desk(client, access, limiter, audit)
    await limiter.close()
    await access.close()
    await engine.dispose()


def amounts(response: httpx2.Response, limit_id: str) -> dict[str, tuple[int, int]]:
    window = next(item for item in response.json()["data"] if item["limit_id"] == limit_id)
    return {item["quantity"]: (item["used"], item["held"]) for item in window["quantities"]}


ELENAS = {"user": f"{ISSUER}#elena", "department": "finanzas", "role": "employee"}


async def test_usage_shows_what_a_persons_requests_used_and_hold(desk: Desk) -> None:
    await desk.spend(100, 50)
    await desk.hold()
    response = await desk.call("GET", "/usage", params=ELENAS)
    assert response.status_code == 200
    assert amounts(response, "user-day") == {"tokens": (150, 30)}
    assert amounts(response, "user-minute") == {"requests": (2, 0), "concurrent": (0, 1)}
    assert amounts(response, "department-day") == {"tokens": (150, 30)}


async def test_a_departments_usage_names_no_person(desk: Desk) -> None:
    await desk.spend(100, 50)
    response = await desk.call("GET", "/usage", params={"department": "finanzas"})
    assert {item["scope"] for item in response.json()["data"]} == {"department"}
    assert amounts(response, "department-day") == {"tokens": (150, 0)}


async def test_usage_says_when_each_window_resets(desk: Desk) -> None:
    response = await desk.call("GET", "/usage", params=ELENAS)
    day = next(item for item in response.json()["data"] if item["limit_id"] == "user-day")
    assert (day["kind"], day["window"], day["resets_at"][10:]) == ("budget", "day", "T00:00:00Z")


async def test_an_administrator_of_another_tenant_sees_their_own_counters_only(desk: Desk) -> None:
    await desk.spend(100, 50)
    response = await desk.call("GET", "/usage", "foreign", params=ELENAS)
    assert response.status_code == 200
    assert amounts(response, "user-day") == {"tokens": (0, 0)}
    assert all(":globex/" in item["counter"] for item in response.json()["data"])


async def test_a_user_must_be_issuer_and_subject(desk: Desk) -> None:
    response = await desk.call("GET", "/usage", params={"user": "elena"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_user")


async def test_budgets_list_the_limits_of_the_policy(desk: Desk) -> None:
    response = await desk.call("GET", "/budgets")
    assert response.json()["policy_version"] == 1
    by_id = {item["id"]: item for item in response.json()["data"]}
    assert by_id["user-day"]["quantities"] == {"tokens": 200_000}
    assert by_id["user-day"]["warn_at"] == [0.8, 0.95]
    assert (by_id["user-minute"]["kind"], by_id["user-day"]["kind"]) == ("rate", "budget")
    assert by_id["department-day"]["scope"] == {"each": "department"}


async def test_a_reset_clears_what_was_used_and_records_before_and_after(desk: Desk) -> None:
    await desk.spend(100, 50)
    body = {"user": f"{ISSUER}#elena", "department": "finanzas", "limits": ["user-day"], "reason": "ticket 42"}
    response = await desk.call("POST", "/usage:reset", json=body)
    assert response.status_code == 200
    assert amounts(response, "user-day") == {"tokens": (0, 0)}
    event = desk.audit.events[-1]
    assert (event.kind, event.action, event.allowed, event.reason) == ("admin", "limits.write", True, "ticket 42")
    assert event.diff is not None
    assert event.diff["before"][0] | {"counter": ""} == {"limit": "user-day", "counter": "", "tokens": 150}
    untouched = await desk.call("GET", "/usage", params=ELENAS)
    assert amounts(untouched, "department-day") == {"tokens": (150, 0)}


async def test_resetting_a_department_leaves_its_peoples_windows(desk: Desk) -> None:
    await desk.spend(100, 50)
    response = await desk.call("POST", "/usage:reset", json={"department": "finanzas", "reason": "new quarter"})
    assert {item["scope"] for item in response.json()["data"]} == {"department"}
    after = await desk.call("GET", "/usage", params=ELENAS)
    assert amounts(after, "user-day") == {"tokens": (150, 0)}
    assert amounts(after, "department-day") == {"tokens": (0, 0)}


async def test_a_request_in_flight_during_a_reset_is_booked_when_it_ends(desk: Desk) -> None:
    reservation = await desk.hold()
    await desk.call("POST", "/usage:reset", json={"department": "finanzas", "reason": "x"})
    await desk.limiter.settle(reservation, used(10, 7), 0)
    response = await desk.call("GET", "/usage", params=ELENAS)
    assert amounts(response, "department-day") == {"tokens": (17, 0)}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"reason": "x"}, 400, "nothing_selected"),
        ({"department": "finanzas", "limits": ["no-such"], "reason": "x"}, 404, "limit_not_found"),
        ({"department": "finanzas", "reason": "x", "tenant": "globex"}, 422, "unknown_field"),
        ({"model": "no-such", "reason": "x"}, 404, "model_not_found"),
    ],
)
async def test_a_refused_reset_says_why_and_is_recorded(
    desk: Desk, body: dict[str, object], status: int, code: str
) -> None:
    response = await desk.call("POST", "/usage:reset", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert (desk.audit.events[-1].error_code, desk.audit.events[-1].allowed) == (code, False)


@pytest.mark.parametrize(("method", "path"), [("GET", "/usage"), ("GET", "/budgets"), ("POST", "/usage:reset")])
async def test_only_those_with_the_permission_may(desk: Desk, method: str, path: str) -> None:
    for token in ("petra", "anita", "elena", "aldo", "oscar", "celia"):
        response = await desk.call(method, path, token)
        assert response.status_code == 403
        assert desk.audit.events[-1].allowed is False


async def test_without_the_store_usage_is_503_and_not_a_guess(desk: Desk) -> None:
    await desk.limiter._store.close()
    response = await desk.call("GET", "/usage", params=ELENAS)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "limits_unavailable")
