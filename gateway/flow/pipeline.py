"""The product on two screens: a corporate token goes in, an audited answer comes out.

Each stage takes the former and returns the next (`flow.stages`); nothing is mutated, and what was decided is what is
recorded. Stages 1 to 9 run here, 10 to 12 in the `Answer` that this module ends in.
Knows the ports, not their implementations; standard library only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from gateway.errors import GatewayError, Unavailable
from gateway.flow.answer import Answer, Completion, StopConditions
from gateway.flow.boundary import BOUNDARY, Finalizers, close
from gateway.flow.budget import (
    estimate,
    granted_tokens,
    guarded,
    prompt_digest,
    usage_cost,
)
from gateway.flow.charge import charged, limits_of
from gateway.flow.context import Clock, RequestContext
from gateway.flow.evolve import evolve
from gateway.flow.first_byte import FirstByteFailed, at_once, backend_call, counting, embedding
from gateway.flow.incoming import IncomingRequest
from gateway.flow.inspection import guard_of, inspected, inspected_again
from gateway.flow.metering import used_so_far
from gateway.flow.permission import permission
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
from gateway.flow.refusals import (
    costs_work,
    near_names,
    permits,
    require_clean,
    require_permitted,
    require_served,
    unknown_model,
)
from gateway.flow.scheduling import scheduling_of
from gateway.flow.stage_timer import StageTimer
from gateway.flow.stages import (
    Authenticated,
    Authorized,
    Concluded,
    Estimated,
    Inspected,
    Read,
    Received,
    Reserved,
    Routed,
    Targeted,
    findings_of,
    served_of,
)
from gateway.flow.values import (
    Chunk,
    EmbeddingRequest,
    Failure,
    LimitRule,
    LimitVerdict,
    ModelCard,
    Outcome,
    Prepared,
    Principal,
    Reservation,
    Usage,
)


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

    async def answer(self, incoming: IncomingRequest) -> Answer:
        """Decide, reserve, record the intent and start. Returns once the first chunk is there.

        Raises `GatewayError` with the refusal; by then the refusal is settled and recorded.
        """
        stage, timer = Received(context=incoming.context), StageTimer(self._clock, incoming.context.started_s)
        stream: AsyncIterator[Chunk] | None = None
        intent_recorded = False  # True once the intent was handed to the audit log
        try:
            with BOUNDARY:
                stage = caller = await self._authenticate(stage, incoming, timer)
                self._rate(limits_of(caller, self._authorizer))
                stage = read = await self._receive(caller, incoming)
                stage = authorized = self._authorize(read, timer)
                require_permitted(authorized.asked, authorized.request, partial(self._visible, read))
                self._rate(authorized.asked.limits)
                stage = clean = await inspected(self._inspector, authorized, timer)
                require_clean(clean.inspection)
                stage = routed = self._route(clean, timer)
                candidates = routed.plan.candidates
                for hop, card in enumerate(candidates):
                    stream = None
                    try:
                        stage = target = self._authorize_target(routed, card)
                        require_permitted(target.decision, target.request)
                        stage = target = await inspected_again(self._inspector, target, timer)
                        require_clean(target.inspection)
                        prepared = await backend_call(self._backend(card).prepare(target.request, card))
                        stage = target = bounded = self._estimate(target, card, prepared)
                        stage = target = reserved = await self._reserve(bounded, card, hop, timer)
                        stream = at_once(partial(self._generate, reserved, prepared))
                        if not intent_recorded:
                            intent_recorded = True
                            await self._audit.intent(reserved)  # durable while the backend already prefills
                        incoming.under_way(reserved)
                        return self._hand_over(reserved, stream, await backend_call(anext(stream, None)), incoming)
                    except FirstByteFailed as failed:
                        await close(stream)
                        if hop + 1 == len(candidates):
                            raise failed.error from None
                        stage = routed = await self._fall_back(target, card)
                    except BaseException:
                        await self.finalizers.run(close(stream))
                        raise
                raise unknown_model()
        except GatewayError as error:
            refused = self._refuse(evolve(stage, timings=timer.timings()), error, intent_recorded=intent_recorded)
            if (instead := await self.finalizers.run(refused)) is not None:
                raise instead from None
            raise
        except asyncio.CancelledError:
            outcome = Outcome.CLIENT_DISCONNECT if incoming.gone() else Outcome.CANCELLED
            await self.finalizers.run(
                self._abandon(evolve(stage, timings=timer.timings()), outcome, stream, intent_recorded=intent_recorded)
            )
            raise

    # ------------------------------------------------------------------------------------------ stages 2 to 9

    async def _authenticate(self, stage: Received, incoming: IncomingRequest, timer: StageTimer) -> Authenticated:
        started = timer.now()
        if incoming.caller is not None:
            principal = await incoming.caller()
        else:
            principal = await self._authenticator.authenticate(incoming.credential(), stage.context)
        timer.auth_us = timer.since(started)
        return stage.authenticated(principal)

    async def _receive(self, caller: Authenticated, incoming: IncomingRequest) -> Read:
        request = await incoming.read(caller.principal)
        return caller.read(request, prompt_digest(request))

    def _authorize(self, read: Read, timer: StageTimer) -> Authorized:
        """On the model as asked: refuses early, and tells hidden from forbidden."""
        started, card = timer.now(), self._card(read)
        decision = self._authorizer.decide(read.principal, read.request.action, card, read.context)
        timer.policy_us = timer.since(started)
        return read.authorized(decision)

    def _rate(self, limits: Iterable[LimitRule]) -> None:
        """A window already known to be full refuses without a round trip: the caller's before the body is read,
        those of the model once it is known."""
        if (verdict := self._limiter.precheck(limits)) is not None and not verdict.allowed:
            raise self._denial(verdict)

    def _route(self, stage: Inspected, timer: StageTimer) -> Routed:
        """Over permitted real models only, so that `auto` never becomes a way round."""
        request, started = stage.request, timer.now()
        asked = self._card(stage)
        require_served(request, asked)
        plan = self._router.plan(request, asked, self._permitted(stage) if asked.virtual else (asked,))
        timer.route_us = timer.since(started)
        return stage.routed(plan)

    def _permitted(self, stage: Read) -> tuple[ModelCard, ...]:
        action, needs = stage.request.action, stage.request.needs
        principal, context = stage.principal, stage.context
        return tuple(
            card
            for card in self._catalog.all()
            if not card.virtual
            and needs in card.actions
            and permits(self._authorizer.decide(principal, action, card, context), stage.request)
        )

    def _authorize_target(self, routed: Routed, card: ModelCard) -> Targeted:
        """Again on the resolved model, at every hop: an alias, a fallback or a router never widens a right."""
        request = routed.request
        if card.id == request.model and routed.asked.policy_version == self._authorizer.version:
            return routed.targeted(routed.asked)  # the same question to the same pure function
        return routed.targeted(self._authorizer.decide(routed.principal, request.action, card, routed.context))

    def _estimate(self, target: Targeted, card: ModelCard, prepared: Prepared) -> Estimated:
        return target.estimated(estimate(target.request, card, target.decision.obligations, prepared))

    async def _reserve(self, bounded: Estimated, card: ModelCard, hop: int, timer: StageTimer) -> Reserved:
        """A fallback is still the same request: it claims tokens on the new model and is not counted twice."""
        started, limits = timer.now(), bounded.decision.limits
        if hop > 0:
            limits = tuple(replace(rule, requests=None) for rule in limits)
        verdict = await self._limiter.reserve(limits, bounded.estimate, card)
        if not verdict.allowed or verdict.reservation is None:
            raise self._denial(verdict)
        timer.limits_us, timer.overhead_us = timer.since(started), timer.since(timer.started_s)
        return bounded.reserved(verdict.reservation, card, timer.timings())

    def _generate(self, reserved: Reserved, prepared: Prepared) -> AsyncIterator[Chunk]:
        request, card, obligations = reserved.request, reserved.served, reserved.decision.obligations
        backend, principal = self._backend(card), reserved.principal
        scheduling = scheduling_of(principal, obligations, reserved.context)
        if not request.runs:
            return counting(prepared)
        if isinstance(request, EmbeddingRequest):
            return embedding(partial(backend.embed, prepared=prepared, scheduling=scheduling), request, card)
        return backend.generate(
            guarded(request, obligations),
            card,
            prepared=prepared,
            request_id=str(reserved.request_id),
            max_output_tokens=granted_tokens(reserved.estimate, reserved.reservation),
            tenant_salt=self._salt(principal, reserved.context, obligations.prefix_cache),
            scheduling=scheduling,
        )

    def _hand_over(
        self, reserved: Reserved, stream: AsyncIterator[Chunk], first: Chunk | None, incoming: IncomingRequest
    ) -> Answer:
        granted = granted_tokens(reserved.estimate, reserved.reservation)
        conditions = StopConditions(
            revoked=lambda: self._authenticator.is_revoked(reserved.principal),
            gone=incoming.gone,
            permitted=permission(self._authenticator, self._authorizer, reserved),
            granted_tokens=granted,
            clamped=granted < reserved.estimate.max_output_tokens,
            deadline_s=reserved.context.deadline_s,
        )
        guard = guard_of(self._inspector, reserved)
        return Answer(reserved, stream, first, conditions, self._conclude, self.finalizers, self._clock, guard)

    # -------------------------------------------------------------------------------- stages 11 and 12, refusals

    async def _conclude(self, stage: Received, completion: Completion, charge: Reservation | None = None) -> Concluded:
        """Settle what was used and write the completion: durable before the last byte in strict mode."""
        started_s, first_s, served = stage.context.started_s, completion.first_chunk_s, served_of(stage)
        claim = stage.reservation if isinstance(stage, Reserved) else charge
        done = Concluded(
            stage=stage,
            outcome=completion.outcome,
            status=completion.status,
            claim=claim,
            usage=completion.usage,
            cost_micro=usage_cost(served, completion.usage) if served is not None else 0,
            signals=completion.signals,
            finish_reason=completion.finish_reason,
            stop_cause=completion.stop_cause,
            failure=completion.failure,
            findings=(*findings_of(stage), *completion.findings),
            response_digest=completion.response_digest,
            completion_contents=completion.completion_contents,
            tool_calls=completion.tool_calls,
            timings=evolve(
                stage.timings,
                ttft_us=round((first_s - started_s) * 1e6) if first_s is not None else None,
                total_us=round((self._clock.monotonic_s() - started_s) * 1e6),
            ),
        )
        try:
            if claim is not None:
                await self._limiter.settle(claim, done.usage, done.cost_micro)
        finally:
            if self._observer is not None:
                self._observer.finished(done)
            await self._audit.completion(done)
        return done

    async def _fall_back(self, target: Targeted, card: ModelCard) -> Routed:
        """Give the claim back before the next candidate makes its own."""
        if isinstance(target, Reserved):
            await self.finalizers.run(self._limiter.settle(target.reservation, Usage(), 0))
        plan = replace(target.plan, route="fallback", reason=f"{target.plan.reason}; {card.id} unavailable")
        return target.fell_back(plan, card)

    async def _refuse(self, stage: Received, error: GatewayError, *, intent_recorded: bool) -> GatewayError | None:
        """A refusal has both records too; the intent only where none was written yet.

        Returns the error to answer instead, where a limit has no room for the request that this refusal costs.
        """
        instead, charge = None, None
        if costs_work(error):
            charge, full = await charged(stage, self._limiter, self._authorizer, self._catalog)
            if full is not None:
                instead = self._denial(full)
                instead.detail = f"{instead.detail or 'a budget'}; in place of {error.status} {error.code}"
                error = instead
        failure = Failure(error.status, error.code, error.message, error.detail)
        completion = Completion(Outcome.DENIED if error.denies else Outcome.ERROR, error.status, failure=failure)
        unaudited = error.code == "audit_unavailable"
        if not intent_recorded and not unaudited:
            await self._audit.intent(
                Concluded.unrun(stage, completion.outcome, completion.status, completion.failure, charge)
            )
        try:
            await self._conclude(stage, completion, charge)
        except Unavailable:
            if not unaudited:
                raise
        return instead

    async def _abandon(
        self, stage: Received, outcome: Outcome, stream: AsyncIterator[Chunk] | None, *, intent_recorded: bool
    ) -> None:
        """The caller left before the first chunk: what was prefilled was still used, a place in the queue was not. It
        was a request also where no more than a part of its body came."""
        charge = None
        if outcome is Outcome.CLIENT_DISCONNECT:
            charge, _ = await charged(stage, self._limiter, self._authorizer, self._catalog)
        usage = used_so_far(stream)
        if usage is None:
            bound = stage.estimate if stream is not None and isinstance(stage, Reserved) else None
            usage = Usage(bound.prompt_tokens if bound is not None else 0, source="estimated")
        completion = Completion(outcome, CLIENT_CLOSED, usage)
        if not intent_recorded:
            await self._audit.intent(
                Concluded.unrun(stage, completion.outcome, completion.status, completion.failure, charge)
            )
        await self._conclude(stage, completion, charge)

    def _card(self, read: Read) -> ModelCard:
        if (card := self._catalog.get(read.request.model)) is None:
            raise unknown_model(near_names(read.request.model, self._visible(read)))
        return card

    def _visible(self, read: Read) -> tuple[ModelCard, ...]:
        return self._authorizer.visible_models(read.principal, read.context)

    def _backend(self, card: ModelCard) -> Backend:
        if (backend := self._backends.get(card.backend)) is None:
            raise Unavailable("The backend of this model is not running.", code="engine_unavailable")
        return backend


CLIENT_CLOSED = 499
"""What access logs and the record show for a client that hung up; it is never sent."""
