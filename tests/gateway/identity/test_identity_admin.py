"""Service accounts, keys and revocations over HTTP and Postgres: rights, replays, rotation, audit, propagation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admin.guard import PermissionGuard
from gateway.admin.identity import keys as key_routes
from gateway.admin.identity import revocations as revocation_routes
from gateway.api.http.errors import install_handlers
from gateway.errors import GatewayError, Unavailable
from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.flow.values import AdminEvent, Credential, Principal
from gateway.identity.accounts import AccountChange, Caller
from gateway.identity.repository import IdentityRepository
from gateway.identity.revocations import Revocation, RevocationIndex
from gateway.identity.service import IdentityService
from gateway.identity.store import IdentityStore
from gateway.settings import IdentitySettings
from gateway.storage.postgres import make_engine
from gateway.wiring.identity import account_service, identity_parts, revocation_service
from tests.fakes.doors import KnownCallers, RoleGrants
from tests.fakes.hang_guard import HANG_S
from tests.fakes.issuer import TestIssuer
from tests.gateway.identity.conftest import eventually

PEPPER = "pimienta-0123456789-0123456789-abc"
ADMIN = Principal(
    tenant="acme",
    issuer="https://idp.test",
    subject="ana",
    roles=frozenset({"platform-admin", "analyst"}),
    department="finanzas",
    clearance="internal",
)
CALLERS = {
    "admin": ADMIN,
    "reader": replace(ADMIN, subject="leo", roles=frozenset({"helpdesk"})),
    "employee": replace(ADMIN, subject="eva", roles=frozenset({"employee"})),
    "rival": replace(ADMIN, tenant="rival", subject="raúl"),
    "other-admin": replace(ADMIN, subject="olga", roles=frozenset({"platform-admin"})),
    "machine": replace(ADMIN, subject="bot", kind="service"),
}
GRANTS = {
    "platform-admin": frozenset({"identity.read", "identity.write"}),
    "helpdesk": frozenset({"identity.read"}),
}
ACCOUNTS, REVOCATIONS = "/admin/v1/service-accounts", "/admin/v1/revocations"


class KeptEvents:
    """An audit log that keeps admin events in a list."""

    def __init__(self) -> None:
        self.events: list[AdminEvent] = []

    async def intent(self, exchange: Any) -> None: ...

    async def completion(self, exchange: Any) -> None: ...

    async def admin(self, event: AdminEvent) -> None:
        self.events.append(event)


class Replica:
    """One gateway's identity over a database that others share."""

    def __init__(self, engine: AsyncEngine, settings: IdentitySettings, issuer: TestIssuer, *, listen: bool) -> None:
        clock, ids = SystemClock(), SystemIds()
        parts = identity_parts(engine, settings, clock, key_sources={"corp": issuer}, listen=listen)
        self.repository, self.revocations, self.identity = parts.repository, parts.revocations, parts.service
        self.accounts, self.revoking = account_service(parts, ids), revocation_service(parts, ids)
        self.context = RequestContext(ids.uuid7(), clock.now(), clock.monotonic_s(), "/v1/chat/completions")

    async def ask(self, key: str) -> Principal:
        return await self.identity.authenticate(Credential("authorization", key), self.context)

    async def code(self, key: str) -> str:
        with pytest.raises(GatewayError) as refused:
            await self.ask(key)
        return refused.value.code


class Api:
    def __init__(self, client: httpx2.AsyncClient, audit: KeptEvents) -> None:
        self.client = client
        self.audit = audit

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str = "admin", **headers: str
    ) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, path, json=body, headers={"authorization": f"Bearer {token}", **named})

    async def account(self, name: str = "nightly", **changes: Any) -> dict[str, Any]:
        answer = await self.call("POST", ACCOUNTS, {"name": name, "roles": ["analyst"], **changes})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def key(self, account: dict[str, Any], **changes: Any) -> dict[str, Any]:
        answer = await self.call("POST", f"{ACCOUNTS}/{account['id']}/keys", {"name": "ci", **changes})
        assert answer.status_code == 201, answer.text
        return answer.json()


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def settings(issuer: TestIssuer) -> IdentitySettings:
    return issuer.settings(api_key_pepper=PEPPER, provider={"tenant": "acme"})


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(database_url, pool_size=5)
    yield engine
    await engine.dispose()


@pytest.fixture
async def replica(engine: AsyncEngine, settings: IdentitySettings, issuer: TestIssuer) -> AsyncIterator[Replica]:
    ready = Replica(engine, settings, issuer, listen=True)
    await ready.identity.start()
    yield ready
    await ready.identity.close()


@pytest.fixture
async def api(replica: Replica) -> AsyncIterator[Api]:
    app = FastAPI()
    install_handlers(app)
    audit = KeptEvents()
    guard = PermissionGuard(KnownCallers(CALLERS), RoleGrants(GRANTS), audit)  # type: ignore[arg-type]
    app.include_router(key_routes.routes(replica.accounts, guard))
    app.include_router(revocation_routes.routes(replica.revoking, guard))

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["context"] = replica.context
        await app(scope, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=with_context), base_url="http://gw") as client:
        yield Api(client, audit)


# --------------------------------------------------------------------------------------- who may, and how far


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", ACCOUNTS, {"name": "nightly", "roles": []}),
        ("POST", REVOCATIONS, {"kind": "issued_before", "reason": "leak"}),
    ],
)
@pytest.mark.parametrize(("token", "status"), [("nobody", 401), ("employee", 403), ("reader", 403)])
async def test_changing_needs_the_permission(
    api: Api, method: str, path: str, body: Any, token: str, status: int
) -> None:
    assert (await api.call(method, path, body, token=token)).status_code == status


@pytest.mark.parametrize("path", [ACCOUNTS, REVOCATIONS])
@pytest.mark.parametrize(("token", "status"), [("nobody", 401), ("employee", 403), ("reader", 200)])
async def test_reading_needs_the_permission(api: Api, path: str, token: str, status: int) -> None:
    assert (await api.call("GET", path, token=token)).status_code == status


async def test_account_belongs_to_whoever_made_it(api: Api) -> None:
    account = await api.account(models=["smollm2-135m-instruct"], clearance="internal")
    assert account["owner"] == {"issuer": ADMIN.issuer, "subject": "ana"}
    assert (account["tenant"], account["department"], account["roles"]) == ("acme", "finanzas", ["analyst"])


@pytest.mark.parametrize(
    "wider", [{"roles": ["auditor"]}, {"roles": ["analyst", "content-reader"]}, {"clearance": "restricted"}]
)
async def test_nobody_grants_beyond_their_own_rights(api: Api, wider: dict[str, Any]) -> None:
    answer = await api.call("POST", ACCOUNTS, {"name": "nightly", "roles": ["analyst"], **wider})
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")
    assert (api.audit.events[-1].kind, api.audit.events[-1].allowed) == ("admin", False)


async def test_admin_without_the_role_makes_no_key_for_anothers_account(api: Api) -> None:
    account = await api.account()
    answer = await api.call("POST", f"{ACCOUNTS}/{account['id']}/keys", {"name": "mine"}, token="other-admin")
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")


async def test_machine_manages_no_machines(api: Api) -> None:
    answer = await api.call("POST", ACCOUNTS, {"name": "child", "roles": ["analyst"]}, token="machine")
    assert refusal(answer) == (403, "interactive_credential_required")


@pytest.mark.parametrize("field", ["owner", "tenant", "is_admin", "id", "allowed_routes", "department", "role"])
async def test_unknown_field_is_refused_not_ignored(api: Api, field: str) -> None:
    answer = await api.call("POST", ACCOUNTS, {"name": "nightly", "roles": ["analyst"], field: "x"})
    assert refusal(answer) == (422, "unknown_field")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "UPPER", "roles": []},
        {"name": "x", "roles": []},
        {"name": "ok-name", "roles": "analyst"},
        {"name": "ok-name", "roles": [" "]},
        {"name": "ok-name", "roles": ["r"] * 33},
        {"name": "ok-name", "roles": [], "clearance": "secret"},
        {"roles": []},
    ],
)
async def test_field_of_the_wrong_shape_is_refused(api: Api, body: Any) -> None:
    assert (await api.call("POST", ACCOUNTS, body)).status_code == 422


async def test_repeated_json_name_is_refused(api: Api) -> None:
    answer = await api.client.post(
        ACCOUNTS,
        content=b'{"name":"nightly","roles":[],"roles":["analyst"]}',
        headers={"authorization": "Bearer admin", "content-type": "application/json"},
    )
    assert answer.status_code == 400


async def test_name_is_taken_once_a_tenant(api: Api) -> None:
    await api.account()
    again = {"name": "nightly", "roles": ["analyst"]}
    assert refusal(await api.call("POST", ACCOUNTS, again)) == (409, "name_taken")
    assert (await api.call("POST", ACCOUNTS, again, token="rival")).status_code == 201


async def test_other_tenant_sees_nothing(api: Api) -> None:
    account = await api.account()
    key = await api.key(account)
    paths = [f"{ACCOUNTS}/{account['id']}", f"{ACCOUNTS}/{account['id']}/keys/{key['id']}"]
    answers = [await api.call("GET", path, token="rival") for path in paths]
    answers.append(await api.call("DELETE", paths[1], token="rival"))
    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert (await api.call("GET", ACCOUNTS, token="rival")).json()["total"] == 0


# ----------------------------------------------------------------------------------------- changes and pages


async def test_change_needs_the_present_etag(api: Api) -> None:
    account = await api.account()
    path = f"{ACCOUNTS}/{account['id']}"
    assert refusal(await api.call("PATCH", path, {"disabled": True})) == (428, "if_match_required")
    assert refusal(await api.call("PATCH", path, {"disabled": True}, if_match='"v9"')) == (412, "etag_mismatch")
    changed = await api.call("PATCH", path, {"disabled": True}, if_match='"v1"')
    assert (changed.status_code, changed.headers["etag"], changed.json()["disabled"]) == (200, '"v2"', True)


async def test_rights_may_be_taken_by_an_admin_who_lacks_them(api: Api) -> None:
    account = await api.account()
    answer = await api.call("PATCH", f"{ACCOUNTS}/{account['id']}", {"roles": []}, token="other-admin", if_match='"v1"')
    assert answer.json()["roles"] == []


@pytest.mark.parametrize("change", [{"roles": ["analyst", "auditor"]}, {"models": None}, {"disabled": False}])
async def test_rights_may_not_be_widened_by_an_admin_who_lacks_them(api: Api, change: dict[str, Any]) -> None:
    account = await api.account(models=["small"])
    path = f"{ACCOUNTS}/{account['id']}"
    await api.call("PATCH", path, {"disabled": True}, if_match='"v1"')
    answer = await api.call("PATCH", path, change, token="other-admin", if_match='"v2"')
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")


async def test_pages_follow_a_cursor_and_tell_the_total(api: Api) -> None:
    names = [f"svc-{number}" for number in range(5)]
    for name in names:
        await api.account(name)
    seen, cursor = [], None
    for _ in range(3):
        query = f"?limit=2{f'&cursor={cursor}' if cursor else ''}"
        page = (await api.call("GET", ACCOUNTS + query)).json()
        seen += [entry["name"] for entry in page["data"]]
        cursor = page["next_cursor"]
    assert (seen, cursor, page["total"], page["has_more"]) == (names[::-1], None, 5, False)


@pytest.mark.parametrize("cursor", ["zzz", "djF4", "0190c0de-0000-7000-8000-000000000000"])
async def test_a_cursor_that_was_not_given_answers_400(api: Api, cursor: str) -> None:
    for path in (ACCOUNTS, "/admin/v1/revocations"):
        assert refusal(await api.call("GET", f"{path}?cursor={cursor}")) == (400, "invalid_cursor")


async def test_a_last_page_that_is_full_promises_no_other(api: Api) -> None:
    account = await api.account("first")
    await api.account("second")
    for number in range(2):
        await api.key(account, name=f"ci-{number}")
        revoked = {"kind": "subject", "issuer": "https://idp.example", "subject": f"u-{number}", "reason": "left"}
        await api.call("POST", "/admin/v1/revocations", revoked)
    for path in (ACCOUNTS, f"{ACCOUNTS}/{account['id']}/keys", "/admin/v1/revocations"):
        page = (await api.call("GET", f"{path}?limit=2")).json()
        assert (len(page["data"]), page["total"], page["has_more"], page["next_cursor"]) == (2, 2, False, None)


async def test_repeated_request_with_its_key_has_one_effect(api: Api) -> None:
    body = {"name": "nightly", "roles": ["analyst"]}
    first = await api.call("POST", ACCOUNTS, body, idempotency_key="req-1")
    second = await api.call("POST", ACCOUNTS, body, idempotency_key="req-1")
    assert first.json()["id"] == second.json()["id"]


async def test_idempotency_key_of_another_request_is_refused(api: Api) -> None:
    await api.call("POST", ACCOUNTS, {"name": "nightly", "roles": []}, idempotency_key="req-1")
    answer = await api.call("POST", ACCOUNTS, {"name": "hourly", "roles": []}, idempotency_key="req-1")
    assert refusal(answer) == (409, "idempotency_key_reused")


async def test_replayed_key_request_shows_no_secret(api: Api) -> None:
    account = await api.account()
    path, body = f"{ACCOUNTS}/{account['id']}/keys", {"name": "ci"}
    first = (await api.call("POST", path, body, idempotency_key="req-2")).json()
    second = (await api.call("POST", path, body, idempotency_key="req-2")).json()
    assert (second["id"], second["key"], second["replayed"]) == (first["id"], None, True)


# ------------------------------------------------------------------------------------------------- keys


async def test_key_works_and_carries_the_accounts_rights(api: Api, replica: Replica) -> None:
    account = await api.account(models=["small", "large"])
    issued = await api.key(account, models=["small"])
    who = await replica.ask(issued["key"])
    assert (who.subject, who.tenant, who.roles) == (account["id"], "acme", {"analyst"})
    assert (who.narrowed_models, who.credential_id) == (("small",), issued["id"])


@pytest.mark.parametrize("wider", [{"roles": ["platform-admin"]}, {"models": ["large"]}])
async def test_key_is_never_wider_than_its_account(api: Api, wider: dict[str, Any]) -> None:
    account = await api.account(models=["small"])
    answer = await api.call("POST", f"{ACCOUNTS}/{account['id']}/keys", {"name": "ci", **wider})
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")


@pytest.mark.parametrize("days", [0, 366, "90", 1.5, True])
async def test_key_lifetime_is_bounded(api: Api, days: Any) -> None:
    account = await api.account()
    answer = await api.call("POST", f"{ACCOUNTS}/{account['id']}/keys", {"name": "ci", "expires_in_days": days})
    assert answer.status_code == 422


async def test_secret_is_shown_once_and_stored_nowhere(api: Api, engine: AsyncEngine) -> None:
    account = await api.account()
    issued = await api.key(account)
    secret = issued["key"].rpartition("-")[2]
    listed = await api.call("GET", f"{ACCOUNTS}/{account['id']}/keys")
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT * FROM identity_api_key"))).all()
    events = repr(api.audit.events)
    assert secret not in listed.text + repr(rows) + events
    assert "digest" not in listed.text


async def test_every_change_is_an_event_with_before_and_after(api: Api) -> None:
    account = await api.account()
    await api.call("PATCH", f"{ACCOUNTS}/{account['id']}", {"roles": []}, if_match='"v1"')
    event = api.audit.events[-1]
    assert (event.kind, event.action, event.before_etag, event.after_etag) == (
        "admin",
        "identity.write",
        '"v1"',
        '"v2"',
    )
    assert event.diff is not None
    assert (event.diff["before"]["roles"], event.diff["after"]["roles"]) == (["analyst"], [])


async def test_rotation_leaves_both_keys_valid_for_the_overlap(api: Api, replica: Replica) -> None:
    account = await api.account()
    old = await api.key(account)
    answer = await api.call("POST", f"{ACCOUNTS}/{account['id']}/keys/{old['id']}:rotate", {"overlap_seconds": 3600})
    new = answer.json()
    ends = datetime.fromisoformat(new["replaces"]["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < ends <= timedelta(hours=1)
    assert (await replica.ask(old["key"])).subject == (await replica.ask(new["key"])).subject


async def test_rotation_without_overlap_ends_the_old_key(api: Api, replica: Replica) -> None:
    account = await api.account()
    old = await api.key(account)
    await replica.ask(old["key"])
    await api.call("POST", f"{ACCOUNTS}/{account['id']}/keys/{old['id']}:rotate", {"overlap_seconds": 0})
    assert await replica.code(old["key"]) == "token_expired"


async def test_key_is_rotated_once(api: Api) -> None:
    account = await api.account()
    old = await api.key(account)
    path = f"{ACCOUNTS}/{account['id']}/keys/{old['id']}:rotate"
    assert (await api.call("POST", path, {})).status_code == 201
    assert refusal(await api.call("POST", path, {})) == (409, "key_not_active")


async def test_last_use_is_kept_in_the_database(api: Api, replica: Replica) -> None:
    account = await api.account()
    issued = await api.key(account)
    await replica.ask(issued["key"])
    assert replica.identity._api_keys is not None
    await replica.identity._api_keys.flush()
    shown = await api.call("GET", f"{ACCOUNTS}/{account['id']}/keys/{issued['id']}")
    assert shown.json()["last_used_at"] is not None


# ---------------------------------------------------------------------------------------------- revocations


async def test_revoked_key_is_refused_and_its_running_answers_stop(api: Api, replica: Replica) -> None:
    account = await api.account()
    issued = await api.key(account)
    who = await replica.ask(issued["key"])
    revoked = await api.call("DELETE", f"{ACCOUNTS}/{account['id']}/keys/{issued['id']}")
    assert revoked.json()["revoked_at"] is not None
    assert replica.identity.is_revoked(who)
    assert await replica.code(issued["key"]) == "token_revoked"


async def test_revoking_a_key_twice_is_harmless(api: Api) -> None:
    account = await api.account()
    path = f"{ACCOUNTS}/{account['id']}/keys/{(await api.key(account))['id']}"
    first, second = await api.call("DELETE", path), await api.call("DELETE", path)
    assert first.json()["revoked_at"] == second.json()["revoked_at"]


async def test_disabled_account_stops_all_its_keys(api: Api, replica: Replica) -> None:
    account = await api.account()
    keys = [await api.key(account, name=f"k{number}") for number in range(2)]
    people = [await replica.ask(key["key"]) for key in keys]
    await api.call("PATCH", f"{ACCOUNTS}/{account['id']}", {"disabled": True}, if_match='"v1"')
    assert all(replica.identity.is_revoked(who) for who in people)


async def test_owner_who_is_revoked_takes_the_accounts_along_until_it_is_lifted(api: Api, replica: Replica) -> None:
    issued = await api.key(await api.account())
    who = await replica.ask(issued["key"])
    body = {"kind": "subject", "issuer": ADMIN.issuer, "subject": "ana", "reason": "left the company"}
    entry = (await api.call("POST", REVOCATIONS, body, token="other-admin")).json()
    assert replica.identity.is_revoked(who)
    await api.call("DELETE", f"{REVOCATIONS}/{entry['id']}", token="other-admin")
    assert (await replica.ask(issued["key"])).subject == who.subject


async def test_revoked_subject_is_refused_with_a_token_that_was_fine(
    api: Api, replica: Replica, issuer: TestIssuer
) -> None:
    token = issuer.token()
    who = await replica.ask(token)
    await api.call(
        "POST",
        REVOCATIONS,
        {"kind": "subject", "issuer": who.issuer, "subject": who.subject, "reason": "stolen laptop"},
    )
    assert (replica.identity.is_revoked(who), await replica.code(token)) == (True, "token_revoked")


async def test_token_can_be_revoked_by_its_id(api: Api, replica: Replica, issuer: TestIssuer) -> None:
    body = {"kind": "credential", "issuer": issuer.issuer, "credential_id": "j-1", "reason": "pasted in a chat"}
    await api.call("POST", REVOCATIONS, body)
    assert await replica.code(issuer.token(jti="j-1")) == "token_revoked"
    assert (await replica.ask(issuer.token(jti="j-2"))).subject == "u-1042"


async def test_everything_issued_before_now_can_be_revoked(api: Api, replica: Replica, issuer: TestIssuer) -> None:
    now = int(time.time())
    old = issuer.token(iat=now - 60, exp=now + 60)
    await replica.ask(old)
    await api.call("POST", REVOCATIONS, {"kind": "issued_before", "reason": "signing key leaked"})
    assert await replica.code(old) == "token_revoked"
    assert (await replica.ask(issuer.token(iat=now + 5, exp=now + 60))).subject == "u-1042"


async def test_revocation_of_one_tenant_does_not_reach_another(api: Api, replica: Replica, issuer: TestIssuer) -> None:
    for body in (
        {"kind": "subject", "issuer": issuer.issuer, "subject": "u-1042", "reason": "mischief"},
        {"kind": "issued_before", "issuer": issuer.issuer, "reason": "mischief"},
    ):
        assert (await api.call("POST", REVOCATIONS, body, token="rival")).status_code == 201
    assert (await replica.ask(issuer.token(iat=int(time.time()) - 60))).tenant == "acme"


async def test_nobody_revokes_themselves(api: Api) -> None:
    body = {"kind": "subject", "issuer": ADMIN.issuer, "subject": "ana", "reason": "by mistake"}
    assert refusal(await api.call("POST", REVOCATIONS, body)) == (409, "would_lock_out")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"kind": "subject", "issuer": "i"}, "subject"),
        ({"kind": "subject", "subject": "s"}, "issuer"),
        ({"kind": "credential", "issuer": "i"}, "credential_id"),
        ({"kind": "credential", "issuer": "i", "credential_id": "c", "subject": "s"}, "subject"),
        ({"kind": "issued_before", "subject": "s"}, "issuer"),
        ({"kind": "issued_before", "issued_before": "2999-01-01T00:00:00Z"}, "issued_before"),
        ({"kind": "issued_before", "issued_before": "2026-01-01T00:00:00"}, "issued_before"),
        ({"kind": "everything"}, "kind"),
    ],
)
async def test_revocation_that_says_too_little_or_too_much_is_refused(api: Api, body: Any, param: str) -> None:
    answer = await api.call("POST", REVOCATIONS, {**body, "reason": "because"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


async def test_lifted_revocations_stay_on_the_record(api: Api) -> None:
    body = {"kind": "subject", "issuer": "i", "subject": "s", "reason": "by mistake"}
    entry = (await api.call("POST", REVOCATIONS, body)).json()
    await api.call("DELETE", f"{REVOCATIONS}/{entry['id']}")
    assert (await api.call("GET", REVOCATIONS)).json()["total"] == 0
    assert (await api.call("GET", REVOCATIONS + "?active=false")).json()["data"][0]["lifted_at"] is not None


# ---------------------------------------------------------------------------------------------- propagation


async def reaches(api: Api, first: Replica, second: Replica, issuer: TestIssuer) -> bool:
    """Whether `second` comes to know what was revoked at `first`."""
    who = await second.ask(issuer.token())
    body = {"kind": "subject", "issuer": who.issuer, "subject": who.subject, "reason": "stolen laptop"}
    assert (await api.call("POST", REVOCATIONS, body)).status_code == 201
    assert first.identity.is_revoked(who)
    return await eventually(lambda: second.identity.is_revoked(who), within_s=HANG_S)


async def test_notification_reaches_the_other_replica(
    api: Api, replica: Replica, engine: AsyncEngine, settings: IdentitySettings, issuer: TestIssuer
) -> None:
    rarely_polled = settings.model_copy(update={"revocation_poll_s": 10 * HANG_S})
    other = Replica(engine, rarely_polled, issuer, listen=True)
    await other.identity.start()
    assert await eventually(lambda: other.revocations.listening, within_s=HANG_S)
    assert await reaches(api, replica, other, issuer)
    await other.identity.close()


async def test_poll_alone_reaches_the_other_replica(
    api: Api, replica: Replica, engine: AsyncEngine, settings: IdentitySettings, issuer: TestIssuer
) -> None:
    other = Replica(engine, settings, issuer, listen=False)
    await other.identity.start()
    assert await reaches(api, replica, other, issuer)
    await other.identity.close()


async def test_unreachable_database_is_503_for_keys_and_nothing_for_tokens(
    settings: IdentitySettings, issuer: TestIssuer, replica: Replica, api: Api
) -> None:
    issued = await api.key(await api.account())
    gone = IdentityRepository(IdentityStore(make_engine("postgresql+asyncpg://x:x@127.0.0.1:9/x")))
    service = IdentityService(
        settings, clock=SystemClock(), key_sources={"corp": issuer}, keys=gone, revocations=replica.revocations
    )
    with pytest.raises(Unavailable) as refused:
        await service.authenticate(Credential("authorization", issued["key"]), replica.context)
    assert refused.value.code == "idp_unavailable"
    assert (await service.authenticate(Credential("authorization", issuer.token()), replica.context)).tenant == "acme"


# ------------------------------------------------------------------------------- what an owner answers for

STOLEN = {"kind": "issued_before", "issuer": ADMIN.issuer, "subject": ADMIN.subject, "reason": "stolen laptop"}


async def test_revoking_an_owners_tokens_stops_the_keys_made_until_then(api: Api, replica: Replica) -> None:
    account = await api.account()
    key = (await api.key(account))["key"]
    assert (await replica.ask(key)).subject == account["id"]
    revoked = await api.call("POST", REVOCATIONS, STOLEN, token="other-admin")
    assert await replica.code(key) == "token_revoked"
    fresh = await api.key(account, name="after")
    assert (await replica.ask(fresh["key"])).subject == account["id"]
    await api.call("DELETE", f"{REVOCATIONS}/{revoked.json()['id']}", token="other-admin")
    assert (await replica.ask(key)).subject == account["id"]


async def test_revoking_a_whole_issuer_stops_the_keys_of_its_people(api: Api, replica: Replica) -> None:
    key = (await api.key(await api.account()))["key"]
    everybody = {**STOLEN, "subject": None}
    await api.call("POST", REVOCATIONS, everybody, token="other-admin")
    assert await replica.code(key) == "token_revoked"


async def test_another_persons_tokens_do_not_concern_a_key(api: Api, replica: Replica) -> None:
    key = (await api.key(await api.account()))["key"]
    await api.call("POST", REVOCATIONS, {**STOLEN, "subject": "eva"}, token="other-admin")
    assert (await replica.ask(key)).kind == "service"


def test_an_installation_may_leave_keys_alone() -> None:
    key = Principal("acme", "urn:esclusa:service-accounts", "a", "service", owner=(ADMIN.issuer, "ana"))
    now = datetime.now(UTC)
    entry = Revocation("r", "issued_before", "acme", ADMIN.issuer, "ana", None, now, "stolen", "olga", now)
    assert RevocationIndex.build([entry]).covers(key)
    assert not RevocationIndex.build([entry], reaches_owned=False).covers(key)
    assert IdentitySettings().owner_revocation_stops_keys


async def test_a_rotated_key_keeps_the_lineage_of_the_first(api: Api, replica: Replica) -> None:
    """Budgets are counted by it, so that rotating is no way to a second one."""
    account = await api.account()
    first = await api.key(account)
    keys = f"{ACCOUNTS}/{account['id']}/keys"
    second = (await api.call("POST", f"{keys}/{first['id']}:rotate", {})).json()
    third = (await api.call("POST", f"{keys}/{second['id']}:rotate", {})).json()
    other = await api.key(account, name="another")
    lineages = [(await replica.ask(key["key"])).key_lineage for key in (first, second, third, other)]
    assert lineages == [first["id"], first["id"], first["id"], other["id"]]


async def test_who_owns_an_account_is_found_by_every_name_of_the_person(api: Api, replica: Replica) -> None:
    account = await api.account()
    ana = replace(ADMIN, person="digest")
    elsewhere = replace(ana, issuer="https://other.test", subject="a.na")
    assert [one.subject for one in await replica.accounts.owned_by(ana)] == [account["id"]]
    assert await replica.accounts.owned_by(elsewhere) == []
    caller = Caller(ana, replica.context)
    asked = AccountChange(frozenset({"analyst"}), None, None, disabled=False)
    hers = await replica.accounts.create(caller, "by-person", asked)
    assert [one.subject for one in await replica.accounts.owned_by(elsewhere)] == [hers.id]
