"""Hand-written stand-ins for the domains, for tests of the pipeline alone. Each does one simple thing and remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gateway.errors import GatewayError, RateLimited
from gateway.flow.context import RequestContext, SystemIds
from gateway.flow.incoming import IncomingRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.stages import Concluded, Exchange
from gateway.flow.values import (
    AdminEvent,
    ChatRequest,
    ChoiceEnd,
    Chunk,
    Credential,
    Decision,
    Effect,
    Estimate,
    GenerationParams,
    Inspection,
    LimitRule,
    LimitVerdict,
    Message,
    ModelCard,
    ModelRequest,
    Obligations,
    Prepared,
    Principal,
    Reservation,
    RoutePlan,
    SchedulingHints,
    TextDelta,
    Usage,
    UsageReport,
)
from tests.fakes.chunks import heard
from tests.fakes.manual_clock import ManualClock

IDS = SystemIds()
MINI = ModelCard("mini", backend="engine", tier="small", context_window=100, price_out_micro=1_000_000)
MAXI = ModelCard("maxi", backend="engine", tier="large", context_window=200, price_out_micro=2_000_000)
AUTO = ModelCard("auto", backend="", virtual=True, context_window=100)
ANA = Principal(tenant="acme", issuer="https://idp", subject="u-1", roles=frozenset({"analyst"}))
ASK = ChatRequest(
    model="mini",
    messages=(Message.of_text("user", "Hola"),),
    params=GenerationParams(max_tokens=20),
    stream=True,
)


@dataclass
class FakeIdentity:
    principal: Principal = ANA
    failure: GatewayError | None = None
    revoked: bool = False
    narrowed: Principal | None = None
    """What the caller may be now, when that has changed."""

    async def authenticate(self, credential: Credential, context: RequestContext) -> Principal:
        if self.failure is not None:
            raise self.failure
        return self.principal

    def is_revoked(self, principal: Principal) -> bool:
        return self.revoked

    def current(self, principal: Principal) -> Principal:
        return self.narrowed or principal


@dataclass
class FakeAccess:
    """Allows the models in `allowed`; remembers what it was asked."""

    allowed: set[str] = field(default_factory=lambda: {"mini", "maxi", "auto"})
    obligations: Obligations = field(default_factory=Obligations)
    duties: dict[str, Obligations] = field(default_factory=dict)
    """By model, in place of `obligations`."""
    hidden: bool = False
    limits: tuple[LimitRule, ...] = ()
    """Of the caller, and of every decision."""
    version: int = 3
    asked: list[str] = field(default_factory=list)

    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        name = model.id if model is not None else "-"
        self.asked.append(name)
        effect = Effect.ALLOW if name in self.allowed else Effect.DENY
        return Decision(
            effect,
            f"{name} is {effect}",
            f"rule-{name}",
            self.version,
            "ab" * 32,
            (),
            self.duties.get(name, self.obligations),
            limits=self.limits,
            hidden=self.hidden,
        )

    def limits_of(self, principal: Principal, context: RequestContext) -> tuple[LimitRule, ...]:
        return self.limits

    def visible_models(self, principal: Principal, context: RequestContext) -> tuple[ModelCard, ...]:
        return tuple(card for card in (MINI, MAXI, AUTO) if card.id in self.allowed)


@dataclass
class FakeLimiter:
    """Grants what is asked for, at most `grant` output tokens."""

    grant: int | None = None
    refusal: LimitVerdict | None = None
    full: LimitVerdict | None = None
    reserved: list[tuple[str, Estimate, str]] = field(default_factory=list)
    settled: list[tuple[str, Usage, int]] = field(default_factory=list)

    def precheck(self, limits: Iterable[LimitRule]) -> LimitVerdict | None:
        return self.full

    async def reserve(self, limits: Sequence[LimitRule], estimate: Estimate, card: ModelCard) -> LimitVerdict:
        if self.refusal is not None:
            return self.refusal
        claim = f"claim-{len(self.reserved)}"
        self.reserved.append((claim, estimate, card.id))
        granted = min(estimate.max_output_tokens, self.grant) if self.grant is not None else estimate.max_output_tokens
        reservation = Reservation(
            claim,
            tokens=estimate.prompt_tokens + granted,
            cost_micro=0,
            granted_output_tokens=granted,
            expires_at=datetime.now(UTC) + timedelta(minutes=1),
            clamped_by="day" if granted < estimate.max_output_tokens else None,
        )
        return LimitVerdict(allowed=True, reservation=reservation)

    async def settle(self, reservation: Reservation, usage: Usage, cost_micro: int) -> None:
        await asyncio.sleep(0)
        self.settled.append((reservation.id, usage, cost_micro))


@dataclass
class FakeAudit:
    """`intents` and `completions` in the order in which they became durable."""

    intents: list[Exchange] = field(default_factory=list)
    completions: list[Concluded] = field(default_factory=list)
    failure: GatewayError | None = None
    gate: asyncio.Event | None = None
    """When set, an intent waits for it: a slow disk."""

    async def intent(self, exchange: Exchange) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.intents.append(exchange)

    async def completion(self, exchange: Concluded) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.completions.append(exchange)

    async def admin(self, event: AdminEvent) -> None: ...


@dataclass
class FakeCatalog:
    cards: tuple[ModelCard, ...] = (MINI, MAXI, AUTO)

    def get(self, model_id: str) -> ModelCard | None:
        return next((card for card in self.cards if card.id == model_id), None)

    def all(self) -> tuple[ModelCard, ...]:
        return self.cards


@dataclass
class FakeRouter:
    """A virtual model becomes all permitted ones, the first first."""

    def plan(self, request: ModelRequest, asked: ModelCard, permitted: Sequence[ModelCard]) -> RoutePlan:
        return RoutePlan(asked.id, tuple(permitted), "as told")


@dataclass
class ScriptedBackend:
    """Yields `words`, one token each; `fail_at` raises `failure` before that word; waits on `gate` before each."""

    words: tuple[str, ...] = ("uno", " dos", " tres")
    tokens: int | None = 7
    failures: dict[str, Exception] = field(default_factory=dict)
    """By model: raised before the first chunk."""
    failure: Exception | None = None
    fail_at: int = 0
    gate: asyncio.Event | None = None
    between: Callable[[int], None] | None = None
    finish_reason: str = "stop"
    started: list[tuple[str, int]] = field(default_factory=list)
    shares: list[SchedulingHints] = field(default_factory=list)
    """What came with each embedding."""
    used: Usage | None = None
    """What streams say that they have cost so far."""
    yielded: int = 0
    closed: int = 0

    async def prepare(self, request: ModelRequest, card: ModelCard) -> Prepared:
        return Prepared(self.tokens, payload=card.id)

    def generate(
        self, request: ModelRequest, card: ModelCard, *, prepared: Prepared, max_output_tokens: int, **_: object
    ) -> ScriptedStream:
        assert prepared.payload == card.id, "what another model's backend prepared"
        self.started.append((card.id, max_output_tokens))
        return ScriptedStream(self, card.id, max_output_tokens)

    async def embed(
        self, request: ModelRequest, card: ModelCard, *, prepared: Prepared, scheduling: SchedulingHints
    ) -> tuple[tuple[tuple[float, ...], ...], Usage]:
        self.shares.append(scheduling)
        return tuple((0.5, float(number)) for number, _ in enumerate(request.inputs)), Usage(
            prompt_tokens=self.tokens or 0
        )

    def status(self) -> Mapping[str, object]:
        return {"state": "ready", "stage": "ready", "percent": 100.0}


class ScriptedStream:
    """Ends at `limit` tokens with `length`, as an engine does."""

    def __init__(self, backend: ScriptedBackend, model: str, limit: int) -> None:
        self._backend, self._model, self._limit, self._next, self._closed = backend, model, limit, 0, False
        self._end: ChoiceEnd | None = None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        script, number = self._backend, self._next
        if script.gate is not None:
            await script.gate.wait()
        if number == 0 and self._model in script.failures:
            raise script.failures[self._model]
        if script.failure is not None and number == script.fail_at:
            raise script.failure
        if script.between is not None:
            script.between(number)
        self._next += 1
        if number < min(len(script.words), self._limit):
            script.yielded += 1
            return TextDelta(text=script.words[number], token_ids=(number,))
        if number == min(len(script.words), self._limit):
            cut = self._limit < len(script.words)
            usage = Usage(prompt_tokens=script.tokens or 5, completion_tokens=number)
            self._end = ChoiceEnd(TextDelta(), "length" if cut else script.finish_reason)
            return UsageReport(usage)
        if self._end is not None:
            end, self._end = self._end, None
            return end
        raise StopAsyncIteration

    def used(self) -> Usage | None:
        return self._backend.used

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._backend.closed += 1


@dataclass
class BlockingInspector:
    inspection: Inspection = field(default_factory=Inspection)

    async def inspect_input(self, request: ModelRequest, decision: Decision) -> Inspection:
        return self.inspection

    def guard_output(self, request: ModelRequest, decision: Decision) -> None:
        return None


@dataclass
class Bench:
    """A pipeline among fakes, and what a test wants to turn."""

    identity: FakeIdentity = field(default_factory=FakeIdentity)
    access: FakeAccess = field(default_factory=FakeAccess)
    limiter: FakeLimiter = field(default_factory=FakeLimiter)
    audit: FakeAudit = field(default_factory=FakeAudit)
    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    backend: ScriptedBackend = field(default_factory=ScriptedBackend)
    inspector: BlockingInspector | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    gone: bool = False
    observed: list[Concluded] = field(default_factory=list)

    def pipeline(self) -> Pipeline:
        return Pipeline(
            authenticator=self.identity,
            authorizer=self.access,
            limiter=self.limiter,
            catalog=self.catalog,
            router=FakeRouter(),
            backends={"engine": self.backend},
            audit=self.audit,
            clock=self.clock,
            salt=lambda principal, context, scope: b"salt",
            denial=lambda verdict: RateLimited(verdict.reason),
            inspector=self.inspector,
            observer=self,
        )

    def finished(self, exchange: Concluded) -> None:
        self.observed.append(exchange)

    def incoming(self, request: ModelRequest = ASK, **changes: object) -> IncomingRequest:
        async def receive() -> ModelRequest:
            return replace(request, **changes)  # type: ignore[arg-type]

        context = RequestContext(
            request_id=IDS.uuid7(),
            received_at=self.clock.now(),
            started_s=self.clock.monotonic_s(),
            route="/v1/chat/completions",
        )
        credential = Credential("authorization", "token")
        return IncomingRequest(context, lambda: credential, receive, lambda: self.gone)

    async def text(self, request: ModelRequest = ASK, **changes: object) -> str:
        """The whole answer of one request."""
        async with await self.pipeline().answer(self.incoming(request, **changes)) as answer:
            return "".join([heard(chunk).text async for chunk in answer])

    @property
    def completion(self) -> Concluded:
        """The one completion that was written."""
        (exchange,) = self.audit.completions
        return exchange
