"""Whoever is refused after his body was read has used one request; nothing of a refused request is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    NotFound,
    NotPermitted,
    RateLimited,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
)
from gateway.flow.request import ModelRequest
from gateway.flow.stages import principal_of
from gateway.flow.values import ChatRequest, Estimate, LimitRule, LimitVerdict, ModelCard, Prepared
from tests.fakes.parts import Bench

PER_USER = LimitRule("per-user", scope="user", scope_key="user:acme/ana", window="minute", requests=5, tokens=1000)
TOKENS_ONLY = LimitRule("tokens", scope="user", scope_key="user:acme/ana", window="minute", tokens=1000)


def bench_with_a_limit() -> Bench:
    bench = Bench()
    bench.access.limits = (PER_USER,)
    return bench


def arrives(bench: Bench, error: GatewayError) -> Any:
    async def receive() -> ChatRequest:
        raise error

    return replace(bench.incoming(), receive=receive)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no JSON", code="invalid_json"),
        InvalidRequest("so many", code="too_many_values"),
        RequestTooLarge("5 MiB"),
    ],
)
async def test_a_body_that_is_refused_counts_as_one_request(error: GatewayError) -> None:
    bench = bench_with_a_limit()
    with pytest.raises(type(error)):
        await bench.pipeline().answer(arrives(bench, error))
    ((key, claim, _),) = bench.limiter.reserved
    assert (key, claim) == ("claim-0", Estimate(0, 0))
    ((settled, usage, cost),) = bench.limiter.settled
    assert (settled, usage.total_tokens, cost) == (key, 0, 0)


async def test_a_prompt_that_does_not_fit_counts_as_one_request() -> None:
    bench = bench_with_a_limit()
    bench.backend.tokens = 1_000_000
    with pytest.raises(ContextLengthExceeded):
        await bench.text()
    assert len(bench.limiter.reserved) == len(bench.limiter.settled) == 1


async def test_asking_for_a_model_that_is_not_permitted_or_not_there_counts_too() -> None:
    bench = bench_with_a_limit()
    bench.access.allowed = set()
    with pytest.raises(NotPermitted):
        await bench.text()
    with pytest.raises(NotFound):
        await bench.text(model="nowhere")
    assert len(bench.limiter.reserved) == 2


async def test_what_a_limit_the_gateway_or_a_missing_identity_refused_does_not_count() -> None:
    bench = bench_with_a_limit()
    bench.limiter.full = LimitVerdict(allowed=False, kind="requests", reason="wait")
    with pytest.raises(RateLimited):
        await bench.text()
    bench.limiter.full = None
    bench.backend.failures = {"mini": Unavailable("down")}
    with pytest.raises(Unavailable):
        await bench.pipeline().answer(arrives(bench, Unavailable("no room")))
    bench.identity.failure = Unauthenticated("who?")
    with pytest.raises(Unauthenticated):
        await bench.text()
    assert bench.limiter.reserved == []


async def test_a_refusal_that_the_limits_have_no_room_for_becomes_theirs() -> None:
    bench = bench_with_a_limit()
    bench.limiter.refusal = LimitVerdict(allowed=False, kind="requests", reason="wait", rule_id="per-user")
    with pytest.raises(RateLimited) as refused:
        await bench.pipeline().answer(arrives(bench, InvalidRequest("no JSON", code="invalid_json")))
    assert refused.value.code == "requests_rate_limited"
    failure = bench.completion.failure
    assert failure is not None
    assert (failure.status, failure.code) == (429, "requests_rate_limited")
    assert str(failure.detail).endswith("in place of 400 invalid_json")


async def test_a_store_that_counts_nothing_changes_no_refusal() -> None:
    bench = bench_with_a_limit()
    bench.limiter.refusal = LimitVerdict(allowed=False, kind="store", reason="away", rule_id="per-user")
    with pytest.raises(InvalidRequest):
        await bench.pipeline().answer(arrives(bench, InvalidRequest("no JSON", code="invalid_json")))


@pytest.mark.parametrize(("gone", "counted"), [(True, 1), (False, 0)])
async def test_whoever_leaves_within_the_body_has_used_one_request(gone: bool, counted: int) -> None:
    """The gateway's own end is nobody's request."""
    bench = bench_with_a_limit()

    async def receive() -> ChatRequest:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.pipeline().answer(replace(bench.incoming(), receive=receive, gone=lambda: gone))
    assert len(bench.limiter.reserved) == len(bench.limiter.settled) == counted


async def test_a_stranger_who_leaves_is_counted_by_no_limit() -> None:
    bench = bench_with_a_limit()

    async def gone(*_: object) -> Any:
        raise asyncio.CancelledError

    bench.identity.authenticate = gone  # type: ignore[method-assign, assignment]
    with pytest.raises(asyncio.CancelledError):
        await bench.pipeline().answer(replace(bench.incoming(), gone=lambda: True))
    assert bench.limiter.reserved == []


async def test_limits_that_count_no_requests_are_left_alone() -> None:
    bench = Bench()
    bench.access.limits = (TOKENS_ONLY,)
    with pytest.raises(InvalidRequest):
        await bench.pipeline().answer(arrives(bench, InvalidRequest("no")))
    assert bench.limiter.reserved == []


async def test_a_window_known_to_be_full_refuses_before_the_body_is_read() -> None:
    bench = bench_with_a_limit()
    bench.limiter.full = LimitVerdict(allowed=False, kind="requests", reason="wait")

    async def receive() -> ChatRequest:
        raise AssertionError("the body was read")

    with pytest.raises(RateLimited):
        await bench.pipeline().answer(replace(bench.incoming(), receive=receive))
    assert principal_of(bench.completion.stage).subject == "u-1"


@dataclass
class Tokens:
    """Stands for what a backend prepared; can be watched by a weak reference."""

    count: int


@pytest.mark.parametrize("refusal", ["too long", "limit", "audit"])
async def test_what_was_prepared_is_gone_after_a_refusal(refusal: str) -> None:
    bench = Bench()
    kept: list[weakref.ref[Tokens]] = []

    async def prepare(request: ModelRequest, card: ModelCard) -> Prepared:
        tokens = Tokens(1_000_000)
        kept.append(weakref.ref(tokens))
        return Prepared(tokens.count if refusal == "too long" else 7, tokens)

    bench.backend.prepare = prepare  # type: ignore[method-assign]
    if refusal == "limit":
        bench.limiter.refusal = LimitVerdict(allowed=False, kind="tokens", reason="too many")
    if refusal == "audit":
        bench.audit.failure = Unavailable("no disk", code="audit_unavailable")
        bench.backend.generate = lambda request, card, *, prepared, **rest: _stream(bench, card)  # type: ignore[method-assign]
    pipeline = bench.pipeline()
    try:
        await pipeline.answer(bench.incoming())
    except GatewayError as error:
        error.__traceback__ = None
    else:
        pytest.fail("nothing was refused")
    gc.collect()
    assert [ref() for ref in kept] == [None]


def _stream(bench: Bench, card: ModelCard) -> Any:
    return type(bench.backend).generate(
        bench.backend,
        ChatRequest(card.id),
        card,
        prepared=Prepared(payload=card.id),
        max_output_tokens=3,
    )
