"""The pipeline among fakes: the order of stages, every refusal, fallback, and that each request ends on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import (
    BlockedByPolicy,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    NotFound,
    NotPermitted,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from gateway.flow.stages import Authorized, Concluded, Estimated, Received, Reserved, plan_of, served_of
from gateway.flow.tools import ToolChoice, ToolSpec
from gateway.flow.values import (
    ChatRequest,
    Chunk,
    EmbeddingRequest,
    Finding,
    GenerationParams,
    Inspection,
    LimitVerdict,
    Message,
    ModelCard,
    ModelRequest,
    Obligations,
    Outcome,
    SchedulingHints,
)
from tests.fakes.chunks import heard
from tests.fakes.parts import ASK, MAXI, MINI, Bench, BlockingInspector, FakeCatalog


async def refused(bench: Bench, kind: type[GatewayError], request: ModelRequest = ASK, **changes: Any) -> GatewayError:
    with pytest.raises(kind) as caught:
        await bench.text(request, **changes)
    return caught.value


async def test_an_answer_is_settled_and_recorded_with_what_was_decided() -> None:
    bench = Bench()
    assert await bench.text() == "uno dos tres"
    done = bench.completion
    assert (done.outcome, done.finish_reason, done.status) == (Outcome.OK, "stop", 200)
    assert done.usage.completion_tokens == 3
    assert done.cost_micro == 3
    assert served_of(done.stage) == MINI
    assert done.response_digest is not None
    assert bench.limiter.settled == [("claim-0", done.usage, 3)]
    assert bench.observed == [done]


async def test_no_chunk_is_given_before_the_intent_is_durable() -> None:
    bench = Bench()
    bench.audit.gate = asyncio.Event()
    waiting = asyncio.create_task(bench.pipeline().answer(bench.incoming()))
    await asyncio.sleep(0.01)
    assert bench.backend.started == [("mini", 20)]
    assert bench.backend.yielded == 0
    assert not waiting.done()
    bench.audit.gate.set()
    async with await waiting as answer:
        assert "".join([heard(chunk).text async for chunk in answer]) == "uno dos tres"
    assert len(bench.audit.intents) == 1


async def test_without_a_durable_intent_nothing_is_answered_and_the_claim_is_given_back() -> None:
    bench = Bench()
    bench.audit.failure = Unavailable("no disk", code="audit_unavailable")
    error = await refused(bench, Unavailable)
    assert error.code == "audit_unavailable"
    assert bench.backend.yielded == 0
    assert bench.backend.closed == 1
    assert bench.limiter.settled[0][1].total_tokens == 0


async def test_a_stranger_is_refused_before_the_body_is_read() -> None:
    bench = Bench()
    bench.identity.failure = Unauthenticated("who?")

    async def receive() -> ChatRequest:
        raise AssertionError("the body was read")

    with pytest.raises(Unauthenticated):
        await bench.pipeline().answer(replace(bench.incoming(), receive=receive))
    assert bench.completion.outcome is Outcome.DENIED
    assert type(bench.completion.stage) is Received
    assert len(bench.audit.intents) == 1


async def test_a_forbidden_model_is_refused_on_record_without_touching_limits_or_backend() -> None:
    bench = Bench()
    bench.access.allowed = set()
    error = await refused(bench, NotPermitted)
    assert error.code == "model_not_permitted"
    assert "mini is deny" in error.message
    assert bench.limiter.reserved == []
    assert bench.backend.started == []
    assert bench.completion.failure is not None
    assert type(bench.completion.stage) is Authorized


async def test_a_hidden_model_looks_like_an_unknown_one() -> None:
    hidden, unknown = Bench(), Bench()
    hidden.access.allowed, hidden.access.hidden = set(), True
    first = await refused(hidden, NotFound)
    second = await refused(unknown, NotFound, model="nowhere")
    assert (first.message, first.code, first.hint) == (second.message, second.code, second.hint)


async def test_the_model_that_routing_chose_is_authorized_again() -> None:
    bench = Bench()
    await bench.text(model="auto")
    assert bench.access.asked == ["auto", "mini", "maxi", "mini"]
    assert served_of(bench.completion.stage) == MINI


async def test_auto_reaches_only_permitted_models() -> None:
    bench = Bench()
    bench.access.allowed = {"auto", "maxi"}
    await bench.text(model="auto")
    plan = plan_of(bench.completion.stage)
    assert plan is not None
    assert plan.candidates == (MAXI,)


async def test_a_policy_that_changed_meanwhile_is_asked_again_even_for_the_same_model() -> None:
    bench = Bench()
    pipeline = bench.pipeline()
    decide = bench.access.decide

    def change_after_first(*args: object) -> object:
        decision = decide(*args)  # type: ignore[arg-type]
        bench.access.version, bench.access.allowed = 4, set()
        return decision

    bench.access.decide = change_after_first  # type: ignore[method-assign, assignment]
    with pytest.raises(NotPermitted):
        await pipeline.answer(bench.incoming())
    assert bench.backend.started == []


async def test_a_backend_that_is_down_hands_over_to_the_next_candidate() -> None:
    bench = Bench()
    bench.backend.failures = {"mini": Unavailable("down")}
    assert await bench.text(model="auto") == "uno dos tres"
    done = bench.completion
    assert isinstance(done.stage, Reserved)
    assert (done.stage.served, done.stage.fallbacks) == (MAXI, ("mini",))
    assert done.stage.plan.route == "fallback"
    assert [card for _, _, card in bench.limiter.reserved] == ["mini", "maxi"]
    assert len(bench.limiter.settled) == 2
    assert len(bench.audit.intents) == 1


async def test_a_fallback_that_is_not_permitted_any_more_is_refused() -> None:
    bench = Bench()
    bench.backend.failures = {"mini": Unavailable("down")}
    decide, seen = bench.access.decide, []

    def only_once(principal: object, action: str, model: object, context: object) -> object:
        seen.append(model)
        if seen.count(MAXI) > 1:
            bench.access.allowed = {"mini", "auto"}
        return decide(principal, action, model, context)  # type: ignore[arg-type]

    bench.access.decide = only_once  # type: ignore[method-assign, assignment]
    error = await refused(bench, NotPermitted, model="auto")
    assert error.code == "model_not_permitted"
    assert [name for name, _ in bench.backend.started] == ["mini"]


async def test_when_every_candidate_is_down_the_caller_hears_of_it() -> None:
    bench = Bench()
    bench.backend.failures = {"mini": Unavailable("down", code="model_loading"), "maxi": Unavailable("down", code="x")}
    assert (await refused(bench, Unavailable, model="auto")).code == "x"
    assert bench.completion.outcome is Outcome.ERROR


async def test_the_limit_of_the_policy_caps_the_output() -> None:
    bench = Bench()
    bench.access.obligations = Obligations(max_output_tokens=2)
    assert await bench.text() == "uno dos"
    assert bench.completion.finish_reason == "length"
    assert bench.completion.stop_cause is None


async def test_a_budget_that_grants_less_ends_the_answer_there_and_says_so() -> None:
    bench = Bench()
    bench.limiter.grant = 1
    assert await bench.text() == "uno"
    assert (bench.completion.finish_reason, bench.completion.stop_cause) == ("length", "budget")
    assert bench.completion.usage.completion_tokens == 1


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers() -> None:
    bench = Bench()
    bench.backend.tokens = 90
    error = await refused(bench, ContextLengthExceeded)
    assert "90" in error.message
    assert "100" in error.message
    assert "10" in (error.hint or "")


async def test_without_max_tokens_the_answer_may_use_the_room_that_is_left() -> None:
    bench = Bench()
    bench.backend.tokens = 90
    await bench.text(params=GenerationParams())
    assert bench.backend.started == [("mini", 10)]


async def test_a_model_may_have_a_length_for_callers_who_name_none() -> None:
    short = replace(MINI, default_max_tokens=12)
    bench = Bench(catalog=FakeCatalog((short, MAXI)))
    await bench.text(params=GenerationParams())
    await bench.text(params=GenerationParams(max_tokens=60))
    assert [limit for _, limit in bench.backend.started] == [12, 60]


async def test_an_inexact_count_never_refuses_by_itself() -> None:
    bench = Bench()
    bench.backend.tokens = None
    long = (Message.of_text("user", "x" * 4000),)
    assert await bench.text(messages=long) == "uno dos tres"
    assert isinstance(bench.completion.stage, Reserved)
    assert not bench.completion.stage.estimate.exact


async def test_a_full_window_refuses_without_a_reservation() -> None:
    bench = Bench()
    bench.limiter.full = LimitVerdict(allowed=False, kind="requests", reason="wait")
    await refused(bench, RateLimited)
    assert bench.limiter.reserved == []


async def test_a_refused_reservation_is_on_record_with_its_estimate() -> None:
    bench = Bench()
    bench.limiter.refusal = LimitVerdict(allowed=False, kind="tokens", reason="too many")
    await refused(bench, RateLimited)
    assert type(bench.completion.stage) is Estimated
    assert bench.completion.claim is None
    assert bench.limiter.settled == []


async def test_blocked_content_names_its_category_and_never_runs() -> None:
    bench = Bench()
    finding = Finding("secrets", "credential", 1, "block", "in")
    bench.inspector = BlockingInspector(Inspection("block", (finding,)))
    error = await refused(bench, BlockedByPolicy)
    assert error.param == "credential"
    assert bench.backend.started == []
    assert bench.completion.findings == (finding,)


async def test_an_obligation_to_redact_without_an_inspector_refuses() -> None:
    bench = Bench()
    bench.access.obligations = Obligations(redaction="redact")
    assert (await refused(bench, Unavailable)).code == "guardrails_unavailable"


async def test_an_action_that_the_model_does_not_serve_is_refused() -> None:
    bench = Bench()
    assert (await refused(bench, InvalidRequest, EmbeddingRequest("mini", ("a",)))).code == "unsupported_action"


async def test_tools_for_a_model_that_calls_none_are_refused_before_they_cost_anything() -> None:
    bench = Bench()
    bench.catalog.cards = (replace(MINI, tools=False),)
    asked = replace(ASK, tools=(ToolSpec("clima"),))
    error = await refused(bench, InvalidRequest, asked)
    assert (error.code, error.param) == ("unsupported_parameter", "tools")
    assert bench.backend.started == []
    bench.catalog.cards = (MINI,)
    assert await bench.text(asked) == "uno dos tres"


async def test_policy_may_deny_tools_and_nothing_else() -> None:
    bench = Bench()
    bench.access.obligations = Obligations(tools="denied")
    asked = replace(ASK, tools=(ToolSpec("clima"),))
    error = await refused(bench, NotPermitted, asked)
    assert (error.status, error.code, error.param) == (403, "tools_not_permitted", "tools")
    assert (bench.completion.outcome, bench.backend.started) == (Outcome.DENIED, [])
    assert await bench.text(asked, tool_choice=ToolChoice("none")) == "uno dos tres"
    assert await bench.text() == "uno dos tres"


async def test_a_router_is_asked_about_no_model_whose_policy_denies_the_tools() -> None:
    bench = Bench()
    bench.access.duties = {"mini": Obligations(tools="denied")}
    await bench.text(ASK, model="auto", tools=(ToolSpec("clima"),))
    assert [model for model, _ in bench.backend.started] == ["maxi"]


async def test_a_bug_of_a_backend_is_a_bare_500_on_record(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.backend.failures = {"mini": ZeroDivisionError("secret detail")}
    error = await refused(bench, GatewayError)
    assert (error.status, error.code) == (500, "internal_error")
    assert "secret" not in error.message
    assert bench.completion.outcome is Outcome.ERROR
    assert len(bench.limiter.settled) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_embeddings_go_through_the_same_stages() -> None:
    bench = Bench()
    bench.catalog.cards = (replace(MINI, actions=("embeddings",)),)
    request = EmbeddingRequest("mini", ("a", "b"))
    async with await bench.pipeline().answer(bench.incoming(request)) as answer:
        chunks = [heard(chunk) async for chunk in answer]
    assert chunks[0].vectors == ((0.5, 0.0), (0.5, 1.0))
    assert bench.completion.usage.prompt_tokens == 7
    assert len(bench.audit.intents) == 1
    (share,) = bench.backend.shares
    assert share == SchedulingHints("acme/u-1")


async def test_a_client_that_leaves_before_the_first_chunk_is_settled_and_recorded() -> None:
    bench = Bench()
    bench.backend.gate = asyncio.Event()
    waiting = asyncio.create_task(bench.pipeline().answer(bench.incoming()))
    await asyncio.sleep(0.01)
    bench.gone = True
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert bench.completion.outcome is Outcome.CLIENT_DISCONNECT
    assert bench.completion.usage.prompt_tokens == 7
    assert bench.backend.closed == 1
    assert len(bench.limiter.settled) == 1


async def test_settlement_survives_a_second_cancellation() -> None:
    bench = Bench()
    bench.backend.gate = asyncio.Event()
    pipeline = bench.pipeline()
    waiting = asyncio.create_task(pipeline.answer(bench.incoming()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await pipeline.finalizers.drain(1.0) == 0
    assert len(bench.limiter.settled) == 1
    assert len(bench.audit.completions) == 1


class RefusesAtOnce:
    """`generate` raises before there is anything to await, as a paused engine does."""

    def __init__(self, bench: Bench, *models: str) -> None:
        self._generate, self._models = bench.backend.generate, models
        bench.backend.generate = self.generate  # type: ignore[method-assign, assignment]

    def generate(self, request: ChatRequest, card: ModelCard, **rest: Any) -> AsyncIterator[Chunk]:
        if card.id in self._models:
            raise Unavailable("paused", code="engine_unavailable")
        return self._generate(request, card, **rest)


async def test_a_backend_that_refuses_at_once_leaves_both_records_and_no_claim() -> None:
    bench = Bench()
    RefusesAtOnce(bench, "mini")
    error = await refused(bench, Unavailable)
    assert error.code == "engine_unavailable"
    (intent,) = bench.audit.intents
    assert isinstance(intent, Concluded)
    assert (intent.status, intent.request_id) == (503, bench.completion.request_id)
    assert [(key, usage.total_tokens) for key, usage, _ in bench.limiter.settled] == [("claim-0", 0)]


async def test_a_backend_that_refuses_at_once_hands_over_to_the_next_candidate() -> None:
    bench = Bench()
    RefusesAtOnce(bench, "mini")
    assert await bench.text(model="auto") == "uno dos tres"
    stage = bench.completion.stage
    assert isinstance(stage, Reserved)
    assert (stage.served, stage.fallbacks) == (MAXI, ("mini",))
    assert len(bench.audit.intents) == 1
