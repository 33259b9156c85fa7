"""GET /admin/v1/audit: who may read, what filters find, how pages follow, and that reading leaves a trace."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from fastapi import FastAPI

from gateway.admin.audit.routes import routes
from gateway.admin.audit.views import RequestView
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies.views import VersionDetail
from gateway.api.http.errors import install_handlers
from gateway.audit.erasure import erase
from gateway.audit.reader import AuditReader
from gateway.audit.service import AuditService
from gateway.errors import NotFound
from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.evolve import advance
from gateway.flow.stages import Read
from gateway.flow.values import Outcome, Principal
from gateway.settings import AuditSettings
from gateway.storage.postgres import make_engine
from tests.fakes.doors import KnownCallers, RoleGrants
from tests.fakes.exchanges import ANA, admitted, context, denied, finished, forbidden, refused

AUDITOR = Principal(tenant="acme", issuer="i", subject="aud-1", roles=frozenset({"auditor"}))
EMPLOYEE = Principal(tenant="acme", issuer="i", subject="emp-1", roles=frozenset({"employee"}))
STRANGER = Principal(tenant="rival", issuer="i", subject="aud-2", roles=frozenset({"auditor"}))
CALLERS = {"auditor": AUDITOR, "employee": EMPLOYEE, "stranger": STRANGER}

Get = Callable[..., Awaitable[httpx2.Response]]


@pytest.fixture
async def audit(database_url: str, tmp_path: Path) -> AsyncIterator[AuditService]:
    engine = make_engine(database_url)
    service = AuditService(
        engine,
        settings=AuditSettings(mode="standard"),
        spool_dir=tmp_path / "spool",
        clock=SystemClock(),
        ids=SystemIds(),
        node_id="node-a",
        gateway_version="0.1.0",
    )
    await service.start()
    yield service
    await service.close()
    await engine.dispose()


@pytest.fixture
async def reader(audit: AuditService, database_url: str) -> AsyncIterator[AuditReader]:
    engine = make_engine(database_url)
    yield AuditReader(engine, cursor_key=audit.cursor_key, settle=audit.settle)
    await engine.dispose()


@pytest.fixture
async def get(audit: AuditService, reader: AuditReader) -> AsyncIterator[Get]:
    app = FastAPI()
    install_handlers(app)
    guard = PermissionGuard(KnownCallers(CALLERS), RoleGrants({"auditor": frozenset({"audit.read"})}), audit)  # type: ignore[arg-type]
    app.include_router(routes(reader, guard, no_policy))

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["context"] = replace(context(), route=scope["path"], method="GET")
        await app(scope, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=with_context), base_url="http://gw") as client:

        async def fetch(
            path: str = "/events", token: str = "auditor", accept: str = "*/*", **params: Any
        ) -> httpx2.Response:
            return await client.get(
                f"/admin/v1/audit{path}", params=params, headers={"authorization": f"Bearer {token}", "accept": accept}
            )

        yield fetch


async def no_policy(_call: AdminCall, version: int) -> VersionDetail:
    raise NotFound(f"There is no policy version {version}.", code="version_not_found")


async def run(audit: AuditService, *, principal: Principal = ANA, model: str = "auto") -> str:
    exchange = admitted(principal, model=model)
    await audit.intent(exchange)
    await audit.completion(finished(exchange))
    return str(exchange.request_id)


async def refuse(audit: AuditService, principal: Principal = ANA) -> str:
    refusal = denied(principal)
    await audit.intent(refusal)
    await audit.completion(refusal)
    return str(refusal.request_id)


async def test_a_record_is_visible_as_soon_as_the_request_is_answered(audit: AuditService, get: Get) -> None:
    request_id = await run(audit)
    body = (await get(request_id=request_id)).json()
    assert [event["phase"] for event in body["data"]] == ["completion", "intent"]
    assert body["has_more"] is False
    assert body["next_cursor"] is None
    assert body["ingest_lag_s"] < 5


async def test_an_employee_gets_403_and_the_refusal_is_recorded(audit: AuditService, get: Get) -> None:
    refused = await get(token="employee")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "not_permitted"
    (event,) = (await get(phase="access", subject="emp-1")).json()["data"]
    assert (event["decision"], event["http_status"]) == ("deny", 403)


async def test_without_a_token_the_answer_is_401(get: Get) -> None:
    assert (await get(token="nobody")).status_code == 401


async def test_every_read_is_itself_an_event(audit: AuditService, get: Get) -> None:
    await get(model="auto", decision="deny")
    (event,) = (await get(phase="access", subject="aud-1")).json()["data"]
    assert event["target"] == "audit/events?decision=deny&limit=100&model=auto"
    assert event["action"] == "audit.read"


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"subject": "u-1042"}, 4),
        ({"subject": "luis"}, 2),
        ({"department": "finanzas"}, 4),
        ({"decision": "deny"}, 2),
        ({"deny_code": "model_not_permitted"}, 2),
        ({"outcome": "denied"}, 2),
        ({"outcome": "ok"}, 2),
        ({"status": 403}, 2),
        ({"phase": "intent"}, 3),
        ({"model": "auto"}, 4),
        ({"model": "smollm2-135m-instruct"}, 4),
        ({"model_requested": "qwen2.5-coder-0.5b-instruct"}, 2),
        ({"model_served": "auto"}, 0),
        ({"tenant": "acme", "decision": "allow"}, 4),
        ({"subject": "' OR '1'='1"}, 0),
        ({"policy_version": 3}, 6),
    ],
)
async def test_filters_find_exactly_what_they_name(
    audit: AuditService, get: Get, params: dict[str, Any], found: int
) -> None:
    await run(audit)
    await refuse(audit)
    await run(audit, principal=replace(ANA, subject="luis", department="ventas"))
    assert len((await get(**params)).json()["data"]) == found


async def test_the_time_range_is_half_open_and_defaults_to_a_day(audit: AuditService, get: Get) -> None:
    request_id = await run(audit)
    newest = (await get(request_id=request_id)).json()["data"][0]["ts"]
    assert len((await get(**{"request_id": request_id, "to": newest})).json()["data"]) == 1
    assert len((await get(**{"request_id": request_id, "from": newest})).json()["data"]) == 1
    before = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (await get(**{"request_id": request_id, "to": before})).json()["data"] == []


async def test_pages_follow_without_gap_or_repetition_while_rows_arrive(audit: AuditService, get: Get) -> None:
    first = [await run(audit) for _ in range(6)]
    end = datetime.now(UTC).isoformat()
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        body = (await get(to=end, limit=5, **cursor)).json()
        seen += [event["event_id"] for event in body["data"]]
        if body["next_cursor"] is None:
            break
        cursor = {"cursor": body["next_cursor"]}
        await run(audit)
    assert len(seen) == len(set(seen)) == 2 * len(first)


async def test_a_forged_cursor_is_refused(audit: AuditService, get: Get) -> None:
    for _ in range(3):
        await run(audit)
    cursor = (await get(limit=2)).json()["next_cursor"]
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    raw[3] ^= 1
    forged = base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()
    for attempt in (forged, "AAAA", "%%%", cursor[:-2]):
        refused = await get(limit=2, cursor=attempt)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_cursor")


async def test_a_cursor_of_another_filter_is_refused(audit: AuditService, get: Get) -> None:
    for _ in range(3):
        await run(audit)
    cursor = (await get(limit=2)).json()["next_cursor"]
    assert (await get(limit=2, cursor=cursor)).status_code == 200
    assert (await get(limit=2, cursor=cursor, subject="u-1042")).status_code == 400


async def test_an_unknown_filter_is_refused_instead_of_ignored(get: Get) -> None:
    refused = await get(subjet="u-1042")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "unknown_field")


@pytest.mark.parametrize("params", [{"limit": 501}, {"limit": 0}, {"decision": "maybe"}, {"request_id": "x"}])
async def test_values_out_of_range_are_refused(get: Get, params: dict[str, Any]) -> None:
    assert (await get(**params)).status_code == 422


async def test_a_range_over_31_days_is_refused(get: Get) -> None:
    refused = await get(**{"from": "2026-01-01T00:00:00Z", "to": "2026-03-01T00:00:00Z"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "range_too_wide")


async def test_an_auditor_of_another_tenant_sees_nothing(audit: AuditService, get: Get) -> None:
    request_id = await run(audit)
    event_id = (await get(request_id=request_id)).json()["data"][0]["event_id"]
    assert (await get(token="stranger", request_id=request_id)).json()["data"] == []
    assert (await get(f"/events/{event_id}", token="stranger")).status_code == 404
    assert (await get(token="stranger", tenant="acme")).status_code == 403


async def test_one_event_shows_its_record_and_its_place_in_the_chain(audit: AuditService, get: Get) -> None:
    request_id = await run(audit)
    event_id = (await get(request_id=request_id, phase="completion")).json()["data"][0]["event_id"]
    event = (await get(f"/events/{event_id}")).json()
    assert event["record"]["usage"]["tokens_out"] == 12
    assert event["record"]["engine"]["mean_logprob_micro"] == -410000
    assert event["record"]["decision"]["route_reason"] == "short question"
    assert event["personal"]["display"] == "Ana Muñoz"
    assert len(bytes.fromhex(event["hash"])) == 32
    assert event["node_seq"] == 3


async def test_an_event_that_does_not_exist_is_404(get: Get) -> None:
    missing = await get(f"/events/{SystemIds().uuid7()}")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_past_decisions_carry_what_a_policy_looks_at(audit: AuditService, reader: AuditReader) -> None:
    await run(audit)
    await refuse(audit, replace(ANA, groups=frozenset({"g-1"}), clearance="internal"))
    await audit.completion(finished(admitted(), Outcome.OK))
    newest, oldest = await reader.recent_decisions(10)
    assert (newest.effect.value, newest.rule_id, newest.model) == ("deny", "r-9", "qwen2.5-coder-0.5b-instruct")
    assert newest.principal.groups == frozenset({"g-1"})
    assert newest.principal.clearance == "internal"
    assert (oldest.effect.value, oldest.model) == ("allow", "smollm2-135m-instruct")
    assert oldest.principal.subject == "u-1042"
    assert len(await reader.recent(since=newest.at, limit=10)) == 1


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"limit": 0}, 422, "invalid_value"),
        ({"subjet": "u-1042"}, 422, "unknown_field"),
        ({"cursor": "AAAA"}, 400, "invalid_cursor"),
        ({"tenant": "rival"}, 403, "not_permitted"),
        ({"from": "2026-01-01", "to": "2026-12-01"}, 400, "range_too_wide"),
    ],
)
async def test_a_query_that_is_refused_is_on_record_as_well(
    audit: AuditService, get: Get, params: dict[str, Any], status: int, code: str
) -> None:
    refused = await get(**params)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    (event,) = (await get(phase="access", subject="aud-1")).json()["data"]
    assert (event["http_status"], event["error_code"], event["target"]) == (status, code, "audit/events")


async def test_an_unknown_query_parameter_is_told_beside_the_valid_ones(get: Get) -> None:
    error = (await get(since="2026-11-24")).json()["error"]
    assert error["message"].startswith("Unknown query parameter `since`. Valid: `from`, `to`, ")
    assert error["param"] == "since"


async def test_an_offset_whose_plus_sign_was_not_encoded_is_explained(get: Get) -> None:
    error = (await get(**{"from": "2026-11-24T00:00:00 01:00"})).json()["error"]
    assert "%2B" in error["hint"]


async def test_a_request_is_one_row_with_its_reason(audit: AuditService, get: Get) -> None:
    request_id, refused = await run(audit), await refuse(audit)
    rows = {row["request_id"]: RequestView(**row) for row in (await get("/requests")).json()["data"]}
    assert set(map(str, rows)) == {request_id, refused}
    row = rows[request_id]
    assert (row.outcome, row.rule_id, row.policy_version, row.tokens_out) == ("ok", "r-7", 3, 12)
    assert row.policy_reason == "analysts may use small models"
    assert row.began_at < row.ended_at
    assert rows[refused].decision == "deny"
    assert [one["request_id"] for one in (await get("/requests", decision="deny")).json()["data"]] == [refused]


async def test_words_that_nobody_knows_are_shown_until_they_are_erased(
    audit: AuditService, get: Get, database_url: str
) -> None:
    said = replace(context(), purpose="for ana", data_class="of ana")
    stage = replace(forbidden(), context=said)
    nameless = replace(advance(stage, Read), request=replace(stage.request, model="ana"))
    unknown = refused(nameless, "model_not_found", 404)
    decided = refused(replace(stage, context=replace(said, request_id=SystemIds().uuid7())), "model_not_found", 404)
    for exchange in (unknown, decided):
        await audit.intent(exchange)
        await audit.completion(exchange)

    async def told() -> tuple[list[Any], list[Any], set[str]]:
        rows = {row["request_id"]: row for row in (await get("/requests")).json()["data"]}
        one, other = (rows[str(exchange.request_id)] for exchange in (unknown, decided))
        events = (await get(request_id=str(unknown.request_id))).json()["data"]
        whole = (await get(f"/events/{events[0]['event_id']}")).json()
        return (
            [one["model_requested"], one["purpose"], one["data_class"]],
            [other["model_requested"], other["purpose"], other["policy_reason"]],
            {whole["model_requested"], *(event["model_requested"] for event in events)},
        )

    known, sentence = "qwen2.5-coder-0.5b-instruct", "only analysts may use large models"
    assert await told() == (["ana", "for ana", "of ana"], [known, "for ana", sentence], {"ana"})
    engine = make_engine(database_url)
    for name in (ANA.subject, "analysts"):
        await erase(engine, tenant=ANA.tenant, issuer=ANA.issuer, subject=name, tell=audit.tell_erased)
    await engine.dispose()
    assert await told() == (["*", "*", "*"], [known, "*", "*"], {"*"})
    found = (await get("/requests", model=known)).json()["data"]
    assert [row["request_id"] for row in found] == [str(decided.request_id)]


async def test_csv_has_the_same_rows_and_no_formula(audit: AuditService, get: Get) -> None:
    await run(audit, principal=replace(ANA, subject="=HYPERLINK(1)", department="@ventas"))
    answer = await get("/requests", accept="text/csv")
    assert answer.headers["content-type"].startswith("text/csv")
    header, row = csv.reader(io.StringIO(answer.text))
    told = dict(zip(header, row, strict=True))
    assert (told["subject"], told["department"], told["tokens_out"]) == ("'=HYPERLINK(1)", "'@ventas", "12")
    assert (await get("/requests", accept="application/json, text/csv")).json()["object"] == "list"


async def test_a_label_of_the_request_finds_it(audit: AuditService, get: Get) -> None:
    exchange = admitted()
    exchange = replace(exchange, request=replace(exchange.request, metadata={"project": "p1"}))
    await audit.intent(exchange)
    await audit.completion(finished(exchange))
    await run(audit)
    (row,) = (await get("/requests", label="project:p1")).json()["data"]
    assert row["request_id"] == str(exchange.request_id)
    assert (await get("/requests", label="project:p2")).json()["data"] == []
    assert (await get("/requests", label="project")).json()["error"]["param"] == "label"


async def test_a_local_day_is_a_day_of_its_time_zone(audit: AuditService, get: Get) -> None:
    request_id = await run(audit)
    for name in ("Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"):
        today = datetime.now(ZoneInfo(name)).date()
        (row,) = (await get("/requests", day=today.isoformat(), tz=name)).json()["data"]
        assert row["request_id"] == request_id
        assert (await get("/requests", day=(today - timedelta(days=2)).isoformat(), tz=name)).json()["data"] == []
    assert (await get("/requests", tz="Mars/Olympus")).json()["error"]["param"] == "tz"
    assert (await get("/requests", day="2026-01-01", to="2026-01-02")).json()["error"]["code"] == "invalid_range"
