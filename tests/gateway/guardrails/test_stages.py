"""The inspector among the other stages: who pays, what is recorded, which duties hold after routing."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.errors import BlockedByPolicy, GatewayError, InvalidRequest, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.parts import TextPart
from gateway.flow.values import (
    Decision,
    GenerationParams,
    LimitRule,
    Message,
    ModelCard,
    Obligations,
    Outcome,
    Principal,
)
from gateway.guardrails.inspector import GuardrailInspector
from gateway.settings import GuardrailSettings
from tests.fakes.chunks import Heard, heard
from tests.fakes.parts import ASK, Bench, FakeAccess

PER_USER = LimitRule("per-user", scope="user", scope_key="user:acme/ana", window="minute", requests=5)

CARD = ("Es la 4111", " 1111", " 1111", " 1111", ", y nada", " más que", " decir")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    inspector = GuardrailInspector(GuardrailSettings())
    yield Bench(inspector=inspector)  # type: ignore[arg-type]
    inspector.close()


async def collect(bench: Bench, **changes: object) -> list[Heard]:
    async with await bench.pipeline().answer(bench.incoming(ASK, **changes)) as answer:
        return [heard(chunk) async for chunk in answer]


async def test_a_redacted_prompt_is_what_the_backend_gets(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="redact")
    seen: list[str] = []
    generate = bench.backend.generate

    def seeing(request: Any, card: ModelCard, **named: Any) -> Any:
        seen.append(request.messages[0].texts[0])
        return generate(request, card, **named)

    bench.backend.generate = seeing  # type: ignore[method-assign, assignment]
    await bench.text(messages=(Message.of_text("user", "DNI 36796476H"),))
    assert seen == ["DNI [ES_NIF]"]
    done = bench.completion
    assert [(found.category, found.action) for found in done.findings] == [("es_nif", "redact")]
    assert done.timings.guard_us is not None


async def test_a_streamed_answer_that_blocks_ends_with_content_filter_and_is_billed(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="block")
    bench.backend.words = CARD
    chunks = await collect(bench)
    assert "".join(chunk.text for chunk in chunks) == "Es la "
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("content_filter", "guardrails")
    assert bench.backend.closed == 1
    done = bench.completion
    assert (done.outcome, done.status, done.finish_reason, done.stop_cause) == (
        *(Outcome.OK, 200),
        *("content_filter", "guardrails"),
    )
    assert 4 <= done.usage.completion_tokens <= 6
    assert bench.limiter.settled[0][1] == done.usage
    assert [(found.category, found.action, found.direction) for found in done.findings] == [("card", "block", "out")]


async def test_a_whole_answer_that_blocks_is_a_400_and_is_billed(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="block", content_logging="encrypted")
    bench.backend.words = CARD
    with pytest.raises(BlockedByPolicy) as caught:
        await collect(bench, stream=False)
    assert (caught.value.param, caught.value.code) == ("card", "blocked_by_policy")
    done = bench.completion
    assert (done.outcome, done.status, done.finish_reason) == (Outcome.DENIED, 400, "content_filter")
    assert done.failure is not None
    assert done.failure.code == "blocked_by_policy"
    assert done.usage.completion_tokens >= 4
    assert len(bench.limiter.settled) == 1
    assert "1111" not in str(done.completion_contents)


async def test_every_choice_ends_when_one_blocks(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="block")
    bench.backend.words = CARD
    chunks = await collect(bench, params=GenerationParams(max_tokens=20, n=3))
    assert [(chunk.index, chunk.finish_reason) for chunk in chunks if chunk.finish_reason] == [
        (0, "content_filter"),
        (1, "content_filter"),
        (2, "content_filter"),
    ]


async def test_a_number_in_the_last_words_still_blocks(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="block")
    bench.backend.words = CARD[:4]
    chunks = await collect(bench)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["content_filter"]
    assert "1111" not in "".join(chunk.text for chunk in chunks)


async def test_what_is_held_leaves_with_a_stop_by_the_gateway(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="redact")
    bench.backend.words = tuple("abcdefgh")
    bench.backend.between = lambda number: setattr(bench.identity, "revoked", number >= 3)
    chunks = await collect(bench)
    assert "".join(chunk.text for chunk in chunks) == "abcd"
    assert (chunks[-1].finish_reason, chunks[-1].stop_cause) == ("length", "revoked")


async def test_what_left_is_what_is_committed_to(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="redact", content_logging="encrypted")
    bench.backend.words = CARD
    shown = "".join(chunk.text for chunk in await collect(bench))
    assert shown == "Es la [CARD], y nada más que decir"
    assert bench.completion.response_digest == hashlib.sha256(shown.encode()).digest()
    assert bench.completion.completion_contents == ((TextPart(shown),),)


async def test_flagging_delays_nothing(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="flag")
    bench.backend.words = CARD
    assert [chunk.text for chunk in await collect(bench)] == [*CARD, ""]
    assert [(found.category, found.action) for found in bench.completion.findings] == [("card", "flag")]


async def test_log_probabilities_of_a_redacted_answer_are_refused_by_name(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="redact")
    with pytest.raises(InvalidRequest) as caught:
        await bench.text(params=GenerationParams(logprobs=True))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "logprobs")
    bench.access.obligations = Obligations(redaction="flag")
    assert await bench.text(params=GenerationParams(logprobs=True))


@dataclass
class StricterAccess(FakeAccess):
    """`auto` asks for `virtual`; the real models have `obligations`."""

    virtual: Obligations = field(default_factory=Obligations)

    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        real, self.obligations = self.obligations, self.obligations
        if model is not None and model.virtual:
            self.obligations = self.virtual
        decision = super().decide(principal, action, model, context)
        self.obligations = real
        return decision


async def test_the_duties_of_the_resolved_model_hold_before_anything_is_sent(bench: Bench) -> None:
    bench.access = StricterAccess(obligations=Obligations(redaction="block"))
    with pytest.raises(BlockedByPolicy):
        await bench.text(model="auto", messages=(Message.of_text("user", "DNI 36796476H"),))
    assert bench.backend.started == []
    assert bench.completion.findings[0].action == "block"


async def test_a_stricter_look_does_not_count_a_finding_twice(bench: Bench) -> None:
    bench.access = StricterAccess(obligations=Obligations(redaction="flag"))
    await bench.text(model="auto", messages=(Message.of_text("user", "DNI 36796476H"),))
    assert [(found.category, found.count) for found in bench.completion.findings] == [("es_nif", 1)]


async def test_an_answer_is_guarded_by_the_stricter_of_the_two(bench: Bench) -> None:
    bench.access = StricterAccess(obligations=Obligations(redaction="flag"), virtual=Obligations(redaction="redact"))
    bench.backend.words = CARD
    assert await bench.text(model="auto") == "Es la [CARD], y nada más que decir"


async def test_the_same_duties_are_done_once(bench: Bench) -> None:
    bench.access.obligations = Obligations(redaction="flag")
    inspector, calls = bench.inspector, []
    assert inspector is not None
    look = inspector.inspect_input

    async def counted(*arguments: object) -> object:
        calls.append(1)
        return await look(*arguments)  # type: ignore[arg-type]

    inspector.inspect_input = counted  # type: ignore[method-assign, assignment]
    await bench.text(model="auto")
    assert len(calls) == 1


@pytest.mark.parametrize("obligations", [Obligations(redaction="block"), Obligations(guardrails="strict")])
async def test_without_an_inspector_a_duty_to_stop_refuses(obligations: Obligations) -> None:
    bench = Bench()
    bench.access.obligations = obligations
    with pytest.raises(Unavailable) as caught:
        await bench.text()
    assert caught.value.code == "guardrails_unavailable"


async def test_a_failed_inspection_refuses_on_record(bench: Bench) -> None:
    bench.inspector = GuardrailInspector(GuardrailSettings(timeout_ms=1))  # type: ignore[assignment]
    bench.access.obligations = Obligations(guardrails="strict")
    with pytest.raises(GatewayError) as caught:
        await bench.text(messages=(Message.of_text("user", "palabra 12 " * 40_000),))
    assert caught.value.code == "guardrails_unavailable"
    assert bench.completion.failure is not None
    assert bench.completion.failure.code == "guardrails_unavailable"


async def test_a_prompt_refused_for_what_it_holds_counts_as_a_request(bench: Bench) -> None:
    bench.access.obligations, bench.access.limits = Obligations(redaction="block"), (PER_USER,)
    with pytest.raises(BlockedByPolicy):
        await bench.text(messages=(Message.of_text("user", "DNI 36796476H"),))
    ((_, estimate, _),) = bench.limiter.reserved
    assert (estimate.prompt_tokens, estimate.max_output_tokens) == (0, 0)
    ((_, usage, cost_micro),) = bench.limiter.settled
    assert (usage.prompt_tokens, usage.completion_tokens, cost_micro) == (0, 0, 0)
    assert bench.completion.outcome is Outcome.DENIED


async def test_a_prompt_that_could_not_be_inspected_counts_as_a_request(bench: Bench) -> None:
    bench.access.obligations, bench.inspector = Obligations(redaction="block", guardrails="strict"), None
    bench.access.limits = (PER_USER,)
    with pytest.raises(Unavailable):
        await bench.text()
    assert len(bench.limiter.reserved) == len(bench.limiter.settled) == 1


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        (Obligations(redaction="flag"), Obligations(redaction="block"), False),
        (Obligations(redaction="redact"), Obligations(redaction="flag"), True),
        (Obligations(guardrails="off"), Obligations(guardrails="default"), False),
        (Obligations(guardrails="default"), Obligations(guardrails="strict"), False),
        (Obligations(guardrails="strict"), Obligations(guardrails="default"), True),
        (Obligations(redaction="redact"), Obligations(redaction="flag", guardrails="strict"), False),
        (Obligations(guardrails="strict"), Obligations(redaction="flag"), False),
    ],
    ids=lambda value: f"{value.redaction}-{value.guardrails}" if isinstance(value, Obligations) else str(value),
)
async def test_an_answer_stops_where_policy_has_come_to_ask_for_a_stricter_guard(
    bench: Bench, before: Obligations, after: Obligations, goes_on: bool
) -> None:
    bench.access.obligations = before
    async with await bench.pipeline().answer(bench.incoming(ASK)) as answer:
        bench.access.obligations, bench.access.version = after, 4
        chunks = [heard(chunk) async for chunk in answer]
    assert (chunks[-1].stop_cause != "policy") is goes_on
