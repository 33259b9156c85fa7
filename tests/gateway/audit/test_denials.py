"""A denial and an error are told apart once, on the error class: both columns of a record, and every count, agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

import gateway
from gateway.audit.canonical import CommitmentKey, parse_json
from gateway.audit.event import Origin
from gateway.audit.flood import Bulk
from gateway.audit.notices import admin_record, bulk_record
from gateway.audit.request_event import request_caller, request_record
from gateway.errors import (
    BlockedByPolicy,
    BudgetExceeded,
    GatewayError,
    InvalidRequest,
    NotFound,
    NotPermitted,
    RateLimited,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    is_denial,
)
from gateway.flow.values import Outcome
from tests.fakes.exchanges import change
from tests.fakes.parts import Bench

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORIGIN = Origin("node", UUID(int=1), "1.0", CommitmentKey(b"k" * 32))
DENIALS = {Unauthenticated, NotPermitted, NotFound, RateLimited, BudgetExceeded, BlockedByPolicy}
CODE = re.compile(r'code\b[^=\n]{0,20}= ?"([a-z_]+)"')


def kinds(kind: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


KINDS = sorted(set(kinds()), key=lambda kind: kind.__name__)
CODES = sorted(
    {kind.code for kind in KINDS}
    | {
        code
        for path in Path(gateway.__path__[0]).rglob("*.py")
        for code in CODE.findall(path.read_text(encoding="utf-8"))
    }
)


def test_a_denial_is_a_refusal_by_identity_policy_limits_or_guardrails() -> None:
    assert {kind for kind in KINDS if kind.denies} == DENIALS
    assert len(CODES) > 60


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_denied_in_both_columns_or_in_neither(code: str) -> None:
    for kind in KINDS:
        if (code == BlockedByPolicy.code) != (kind is BlockedByPolicy):
            continue  # 400 is otherwise malformed, and this code is of no other class
        assert is_denial(kind.status, code) == kind.denies, kind
        bulk = bulk_record(ORIGIN, UUID(int=2), NOW, Bulk(code, kind.status, 3, NOW, NOW, UUID(int=3)))
        told = parse_json(bulk.rec)
        assert (told["result"]["outcome"], told["decision"]["effect"]) == (
            ("denied", "deny") if kind.denies else ("error", "error")
        )
        assert told["decision"].get("deny_code") == (code if kind.denies else None)
        assert told["result"]["error_code"] == code
        event = change(allowed=False, status=kind.status, error_code=code)
        told = parse_json(admin_record(ORIGIN, UUID(int=2), NOW, event).rec)
        assert told["decision"]["effect"] == ("deny" if kind.denies else "error")
        assert told["result"]["error_code"] == code


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_is_denied_where_its_decision_is_deny(kind: type[GatewayError]) -> None:
    bench = Bench()
    bench.identity.failure = kind("no")
    with pytest.raises(kind):
        await bench.pipeline().answer(bench.incoming())
    for exchange, phase in ((bench.audit.intents[0], "intent"), (bench.completion, "completion")):
        record = request_record(ORIGIN, UUID(int=2), NOW, phase, exchange, request_caller(ORIGIN, exchange))  # type: ignore[arg-type]
        told = parse_json(record.rec)
        assert (told["result"]["outcome"] == "denied") == (told["decision"]["effect"] == "deny") == kind.denies
        assert ("deny_code" in told["decision"]) == kind.denies


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no", code="invalid_json"),
        RequestTooLarge("no"),
        UnsupportedMediaType("no"),
        Unavailable("no", code="overloaded"),
    ],
)
async def test_a_malformed_request_is_an_error(error: GatewayError) -> None:
    bench = Bench()

    async def receive() -> None:
        raise error

    incoming = bench.incoming()
    with pytest.raises(type(error)):
        await bench.pipeline().answer(type(incoming)(incoming.context, incoming.credential, receive))  # type: ignore[arg-type]
    assert bench.completion.outcome is Outcome.ERROR
