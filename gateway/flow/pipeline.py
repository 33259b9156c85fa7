"""The product on two screens: a corporate token goes in, an audited answer comes out.

Each stage takes the exchange so far and returns it with one more frozen value; nothing is mutated, and what was
decided is what is recorded. Stages 1 to 9 run here, 10 to 12 in the `Answer` that this module ends in.
Knows the ports, not their implementations; standard library only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from gateway.errors import GatewayError, InvalidRequest, Unavailable
from gateway.flow.answer import Answer, Authority, Ending
from gateway.flow.boundary import BOUNDARY, Finalizers, close
from gateway.flow.budget import (
    estimate,
    granted_tokens,
    prompt_digest,
    rough_prompt_tokens,
    usage_cost,
)
from gateway.flow.charge import charged, limits_of
from gateway.flow.context import Clock, RequestContext
from gateway.flow.first_byte import FirstByteFailed, at_once, backend_call, embedding
from gateway.flow.growth import grow
from gateway.flow.inspection import guard_of, inspected, stricter
from gateway.flow.laps import Laps
from gateway.flow.metering import used_so_far
from gateway.flow.ports import (
    AuditLog,
    Authenticator,
    Authorizer,
    Backend,
    Catalog,
    Inspector,
    Limiter,
    Observer,
    Router,
)
from gateway.flow.refusals import costs_work, demand, demand_clean, unknown_model
from gateway.flow.values import (
    Chunk,
    Credential,
    EmbeddingRequest,
    Exchange,
    Failure,
    LimitRule,
    LimitVerdict,
    ModelCard,
    ModelRequest,
    Outcome,
    Prepared,
    Principal,
    Usage,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the API hands over. The body is read only after the caller is known: strangers cost no parsing."""

    context: RequestContext
    credential: Callable[[], Credential]
    receive: Callable[[], Awaitable[ModelRequest]]
    gone: Callable[[], bool] = lambda: False
    """True once the client has hung up; tells a disconnect from another cancellation."""


class Pipeline:
    """Built once by `wiring`. `answer` is the only way to run a model."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
        limiter: Limiter,
        catalog: Catalog,
        router: Router,
        backends: Mapping[str, Backend],
        audit: AuditLog,
        clock: Clock,
        salt: Callable[[Principal, RequestContext, str], bytes],
        denial: Callable[[LimitVerdict], GatewayError],
        inspector: Inspector | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._authenticator, self._authorizer, self._limiter = authenticator, authorizer, limiter
        self._catalog, self._router, self._backends = catalog, router, backends
        self._audit, self._clock, self._inspector, self._observer = audit, clock, inspector, observer
        self._salt, self._denial = salt, denial
        self.finalizers = Finalizers()

    async def answer(self, arrival: Arrival) -> Answer:
        """Decide, reserve, record the intent and start. Returns once the first chunk is there.

        Raises `GatewayError` with the refusal; by then the refusal is settled and recorded.
        """
        exchange, laps = Exchange(context=arrival.context), Laps(self._clock, arrival.context.started_s)
        stream: AsyncIterator[Chunk] | None = None
        told = False  # True once the intent was handed to the audit log
        try:
            with BOUNDARY:
                exchange = await self._authenticate(exchange, arrival, laps)
                self._rate(limits_of(exchange, self._authorizer))
                exchange = await self._receive(exchange, arrival)
                exchange = self._authorize(exchange, laps)
                demand(known(exchange.asked))
                self._rate(known(exchange.asked).limits)
                exchange = await inspected(self._inspector, exchange, known(exchange.asked), laps)
                demand_clean(exchange.inspection)
                exchange = self._route(exchange, laps)
                candidates = known(exchange.plan).candidates
                for hop, card in enumerate(candidates):
                    stream = None
                    try:
                        exchange = self._authorize_target(exchange, card)
                        demand(known(exchange.decision))
                        exchange = await inspected(self._inspector, exchange, known(exchange.decision), laps)
                        demand_clean(exchange.inspection)
                        prepared = await backend_call(self._backend(card).prepare(request_of(exchange), card))
                        exchange = self._estimate(exchange, card, prepared)
                        exchange = await self._reserve(exchange, card, hop, laps)
                        stream = at_once(partial(self._generate, exchange, card, prepared))
                        if not told:
                            told = True
                            await self._audit.intent(exchange)  # durable while the backend already prefills
                        return self._hand_over(exchange, stream, await backend_call(anext(stream, None)), arrival)
                    except FirstByteFailed as failed:
                        await close(stream)
                        if hop + 1 == len(candidates):
                            raise failed.error from None
                        exchange = await self._fall_back(exchange, card)
                    except BaseException:
                        await self.finalizers.run(close(stream))
                        raise
                raise unknown_model()
        except GatewayError as error:
            refused = self._refuse(grow(exchange, timings=laps.timings()), error, told=told)
            if (instead := await self.finalizers.run(refused)) is not None:
                raise instead from None
            raise
        except asyncio.CancelledError:
            outcome = Outcome.CLIENT_DISCONNECT if arrival.gone() else Outcome.CANCELLED
            await self.finalizers.run(self._abandon(grow(exchange, timings=laps.timings()), outcome, stream, told=told))
            raise

    # ------------------------------------------------------------------------------------------ stages 2 to 9

    async def _authenticate(self, exchange: Exchange, arrival: Arrival, laps: Laps) -> Exchange:
        started = laps.now()
        principal = await self._authenticator.authenticate(arrival.credential(), exchange.context)
        laps.auth_us = laps.since(started)
        return grow(exchange, principal=principal)

    async def _receive(self, exchange: Exchange, arrival: Arrival) -> Exchange:
        request = await arrival.receive()
        return grow(exchange, request=request, prompt_digest=prompt_digest(request))

    def _authorize(self, exchange: Exchange, laps: Laps) -> Exchange:
        """On the model as asked: refuses early, and tells hidden from forbidden."""
        request, started = request_of(exchange), laps.now()
        card = self._card(request.model)
        decision = self._authorizer.decide(exchange.principal, request.action, card, exchange.context)
        laps.policy_us = laps.since(started)
        return grow(exchange, asked=decision)

    def _rate(self, limits: Iterable[LimitRule]) -> None:
        """A window already known to be full refuses without a round trip: the caller's before the body is read,
        those of the model once it is known."""
        if (verdict := self._limiter.precheck(limits)) is not None and not verdict.allowed:
            raise self._denial(verdict)

    def _route(self, exchange: Exchange, laps: Laps) -> Exchange:
        """Over permitted real models only, so that `auto` never becomes a way round."""
        request, started = request_of(exchange), laps.now()
        asked = self._card(request.model)
        if not asked.virtual and request.action not in asked.actions:
            raise InvalidRequest(
                f"This model does not serve {request.action}.",
                code="unsupported_action",
                param="model",
                hint="GET /v1/models lists what each model serves",
            )
        plan = self._router.plan(request, asked, self._permitted(exchange) if asked.virtual else (asked,))
        laps.route_us = laps.since(started)
        return grow(exchange, plan=plan)

    def _permitted(self, exchange: Exchange) -> tuple[ModelCard, ...]:
        action, principal, context = request_of(exchange).action, exchange.principal, exchange.context
        return tuple(
            card
            for card in self._catalog.all()
            if not card.virtual
            and action in card.actions
            and self._authorizer.decide(principal, action, card, context).allowed
        )

    def _authorize_target(self, exchange: Exchange, card: ModelCard) -> Exchange:
        """Again on the resolved model, at every hop: an alias, a fallback or a router never widens a right."""
        asked, request = known(exchange.asked), request_of(exchange)
        if card.id == request.model and asked.policy_version == self._authorizer.version:
            return grow(exchange, decision=asked)  # the same question to the same pure function
        decision = self._authorizer.decide(exchange.principal, request.action, card, exchange.context)
        return grow(exchange, decision=decision)

    def _estimate(self, exchange: Exchange, card: ModelCard, prepared: Prepared) -> Exchange:
        request, obligations = request_of(exchange), known(exchange.decision).obligations
        counted = prepared.prompt_tokens
        tokens = rough_prompt_tokens(request) if counted is None else counted
        return grow(exchange, estimate=estimate(request, card, obligations, tokens, exact=counted is not None))

    async def _reserve(self, exchange: Exchange, card: ModelCard, hop: int, laps: Laps) -> Exchange:
        """A fallback is still the same request: it claims tokens on the new model and is not counted twice."""
        started, limits, key = laps.now(), known(exchange.decision).limits, str(exchange.request_id)
        if hop > 0:
            limits, key = tuple(replace(rule, requests=None) for rule in limits), f"{key}.{hop}"
        verdict = await self._limiter.reserve(key, limits, known(exchange.estimate), card)
        if not verdict.allowed:
            raise self._denial(verdict)
        laps.limits_us, laps.overhead_us = laps.since(started), laps.since(laps.started_s)
        return grow(exchange, reservation=verdict.reservation, served=card, timings=laps.timings())

    def _generate(self, exchange: Exchange, card: ModelCard, prepared: Prepared) -> AsyncIterator[Chunk]:
        request, obligations = request_of(exchange), known(exchange.decision).obligations
        backend, principal = self._backend(card), exchange.principal
        share_key = f"{principal.tenant}/{principal.subject}"
        if isinstance(request, EmbeddingRequest):
            embed = partial(
                backend.embed,
                prepared=prepared,
                share_key=share_key,
                share_weight=obligations.share_weight,
                priority=obligations.priority,
                deadline_s=exchange.context.deadline_s,
            )
            return embedding(embed, request, card)
        return backend.generate(
            request,
            card,
            prepared=prepared,
            request_id=str(exchange.request_id),
            max_output_tokens=granted_tokens(known(exchange.estimate), exchange.reservation),
            tenant_salt=self._salt(principal, exchange.context, obligations.prefix_cache),
            share_key=share_key,
            share_weight=obligations.share_weight,
            priority=obligations.priority,
            deadline_s=exchange.context.deadline_s,
        )

    def _hand_over(
        self, exchange: Exchange, stream: AsyncIterator[Chunk], first: Chunk | None, arrival: Arrival
    ) -> Answer:
        reservation, principal, bound = exchange.reservation, exchange.principal, known(exchange.estimate)
        granted = granted_tokens(bound, reservation)
        authority = Authority(
            revoked=lambda: self._authenticator.is_revoked(principal),
            gone=arrival.gone,
            permitted=self._permission(exchange),
            granted_tokens=granted,
            clamped=granted < bound.max_output_tokens,
            deadline_s=exchange.context.deadline_s,
        )
        guard = guard_of(self._inspector, exchange)
        return Answer(exchange, stream, first, authority, self._conclude, self.finalizers, self._clock, guard)

    def _permission(self, exchange: Exchange) -> Callable[[], bool]:
        """Asked between chunks: decides again only when the policy or the caller's rights have changed. Without a
        policy that may still be served nothing goes on; nor does an answer whose guard would now be stricter."""
        action, card, authorizer = request_of(exchange).action, known(exchange.served), self._authorizer
        seen, caller = known(exchange.decision).policy_version, exchange.principal

        def permitted() -> bool:
            nonlocal seen, caller
            present = self._authenticator.present(exchange.principal)
            if present is not caller and present == caller:
                caller = present
            try:
                if authorizer.version == seen and present is caller:
                    return True
                decision = authorizer.decide(present, action, card, exchange.context)
            except Unavailable:
                return False
            seen, caller = decision.policy_version, present
            return decision.allowed and not stricter(decision, known(exchange.decision))

        return permitted

    # -------------------------------------------------------------------------------- stages 11 and 12, refusals

    async def _conclude(self, exchange: Exchange, ending: Ending) -> Exchange:
        """Settle what was used and write the completion: durable before the last byte in strict mode."""
        started_s, first_s, usage = exchange.context.started_s, ending.first_chunk_s, ending.usage
        exchange = grow(
            exchange,
            outcome=ending.outcome,
            status=ending.status,
            usage=usage,
            cost_micro=usage_cost(exchange.served, usage) if exchange.served is not None else 0,
            signals=ending.signals,
            finish_reason=ending.finish_reason,
            stop_cause=ending.stop_cause,
            failure=ending.failure,
            findings=(*exchange.findings, *ending.findings),
            response_digest=ending.response_digest,
            completion_texts=ending.completion_texts,
            timings=grow(
                exchange.timings,
                ttft_us=round((first_s - started_s) * 1e6) if first_s is not None else None,
                total_us=round((self._clock.monotonic_s() - started_s) * 1e6),
            ),
        )
        try:
            if exchange.reservation is not None:
                await self._limiter.settle(exchange.reservation, usage, exchange.cost_micro)
        finally:
            if self._observer is not None:
                self._observer.finished(exchange)
            await self._audit.completion(exchange)
        return exchange

    async def _fall_back(self, exchange: Exchange, card: ModelCard) -> Exchange:
        """Give the claim back before the next candidate makes its own."""
        if exchange.reservation is not None:
            await self.finalizers.run(self._limiter.settle(exchange.reservation, Usage(), 0))
        plan = known(exchange.plan)
        plan = replace(plan, route="fallback", reason=f"{plan.reason}; {card.id} unavailable")
        return grow(exchange, reservation=None, plan=plan, fallbacks=(*exchange.fallbacks, card.id))

    async def _refuse(self, exchange: Exchange, error: GatewayError, *, told: bool) -> GatewayError | None:
        """A refusal has both records too; the intent only where none was written yet.

        Returns the error to answer instead, where a limit has no room for the request that this refusal costs.
        """
        instead = None
        if costs_work(error):
            exchange, full = await charged(exchange, self._limiter, self._authorizer, self._catalog)
            if full is not None:
                instead = self._denial(full)
                instead.detail = f"{instead.detail or 'a budget'}; in place of {error.status} {error.code}"
                error = instead
        outcome = Outcome.DENIED if error.denies else Outcome.ERROR
        failure = Failure(error.status, error.code, error.message, error.detail)
        unaudited = error.code == "audit_unavailable"
        if not told and not unaudited:
            await self._audit.intent(grow(exchange, outcome=outcome, status=error.status, failure=failure))
        try:
            await self._conclude(exchange, Ending(outcome, error.status, failure=failure))
        except Unavailable:
            if not unaudited:
                raise
        return instead

    async def _abandon(
        self, exchange: Exchange, outcome: Outcome, stream: AsyncIterator[Chunk] | None, *, told: bool
    ) -> None:
        """The caller left before the first chunk: what was prefilled was still used, a place in the queue was not. It
        was a request also where no more than a part of its body came."""
        if outcome is Outcome.CLIENT_DISCONNECT:
            exchange, _ = await charged(exchange, self._limiter, self._authorizer, self._catalog)
        usage = used_so_far(stream)
        if usage is None:
            bound = exchange.estimate if stream is not None else None
            usage = Usage(prompt_tokens=bound.prompt_tokens if bound is not None else 0, source="estimated")
        if not told:
            await self._audit.intent(grow(exchange, outcome=outcome, status=CLIENT_CLOSED))
        await self._conclude(exchange, Ending(outcome, CLIENT_CLOSED, usage))

    def _card(self, model: str) -> ModelCard:
        card = self._catalog.get(model)
        if card is None:
            raise unknown_model()
        return card

    def _backend(self, card: ModelCard) -> Backend:
        if (backend := self._backends.get(card.backend)) is None:
            raise Unavailable("The backend of this model is not running.", code="engine_unavailable")
        return backend


CLIENT_CLOSED = 499
"""What access logs and the record show for a client that hung up; it is never sent."""


def request_of(exchange: Exchange) -> ModelRequest:
    assert exchange.request is not None, "a stage ran before the one it depends on"
    return exchange.request


def known(value: T | None) -> T:
    """What an earlier stage gave. Its absence is a bug of the pipeline, never of a request."""
    if value is None:
        raise RuntimeError("a stage ran before the one it depends on")
    return value
