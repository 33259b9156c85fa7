"""The limiter of the pipeline: reserve before, settle after, whatever the store does.

Owns when to ask the store, when to fall back to the local share and what still has to be settled. Decisions are made
by the counters (`scripts/`, `look.py`) and worded by `verdict.py`; it knows neither policy nor HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.flow.context import Clock, IdSource
from gateway.flow.values import Estimate, LimitRule, LimitVerdict, ModelCard, Reservation, Usage
from gateway.limits.breaker import Breaker
from gateway.limits.claim import BoundRule, Refusal, Settlement, Tally, claim_for, settlement_for
from gateway.limits.full_windows import FullWindows
from gateway.limits.local import LocalStore
from gateway.limits.settlements import PendingSettlements
from gateway.limits.store import LimitStore, StoreUnavailable
from gateway.limits.verdict import granted, other_currency, passed_threshold, refused, store_down
from gateway.settings import LimitSettings

_log = logging.getLogger("esclusa.limits")
RETRY_S = 0.2
BATCH = 256
SETTLE_FLOOR_S = 0.002


@dataclass(frozen=True, slots=True)
class _ActiveReservation:
    """A reservation that this process has not settled yet."""

    started_s: float
    spent_s: float
    """The time the store already cost this request."""
    bound: tuple[BoundRule, ...]
    local: bool


class LimitService:
    """Implements `flow.ports.Limiter`. `patience_s` is what the store may add to one request, reserve and settle
    together. `holder` names this process in its claims; those of `dead_holders`, which are known to have ended, are
    released at start instead of when their leases expire. Callbacks must be quick and must not raise."""

    def __init__(
        self,
        store: LimitStore,
        *,
        clock: Clock,
        ids: IdSource,
        settings: LimitSettings,
        patience_s: float = 0.05,
        holder: str = "",
        dead_holders: Sequence[str] = (),
        on_degraded: Callable[[bool], None] | None = None,
        on_warning: Callable[[LimitRule, float], None] | None = None,
        on_alarm: Callable[[LimitRule], None] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._patience_s = patience_s
        self._holder, self._dead_holders = holder, list(dead_holders)
        self._on_degraded = on_degraded
        self._on_warning = on_warning
        self._on_alarm = on_alarm
        self._local = LocalStore(clock=clock, prefix=settings.key_prefix, replicas=settings.replicas)
        self._breaker = Breaker()
        self._pending = PendingSettlements()
        self._live: dict[str, _ActiveReservation] = {}
        self._full = FullWindows()
        self._warned: set[tuple[str, float]] = set()
        self._alarmed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._tripped = asyncio.Event()
        self._unsettled = asyncio.Event()
        self._lease_ms = int(settings.lease_s * 1000)
        store.on_lost = self._lost

    # --------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Connect and start the sweeper. A store that is away only means a degraded start."""
        try:
            await self._store.open()
            await self._release_dead()
        except StoreUnavailable:
            self._trip()
        self._tasks = [
            asyncio.create_task(self._guard(), name="limits-guard"),
            asyncio.create_task(self._janitor(), name="limits-janitor"),
        ]

    async def close(self) -> None:
        """Settle what can be settled, then let go. Claims of this process that remain are freed as leases expire."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if not self._breaker.is_open:
            await self._flush()
        await self._store.close()

    @property
    def degraded(self) -> bool:
        """True while limits come from the local share instead of the store."""
        return self._breaker.is_open

    def state(self) -> Mapping[str, object]:
        """For `/readyz` and metrics; no I/O."""
        return {
            "state": "degraded" if self.degraded else "ok",
            "in_flight": len(self._live),
            "pending_settlements": len(self._pending),
            "dropped_settlements": self._pending.dropped,
        }

    # ------------------------------------------------------------------------------------ requests

    def precheck(self, limits: Iterable[LimitRule]) -> LimitVerdict | None:
        return self._full.precheck(limits, self._clock.monotonic_s(), store_away=self._breaker.is_open)

    async def reserve(self, limits: Sequence[LimitRule], estimate: Estimate, card: ModelCard) -> LimitVerdict:
        uncountable = other_currency(limits, card)
        if uncountable is not None:
            return uncountable
        claim = claim_for(
            f"{self._holder}.{self._ids.uuid7().hex}",
            estimate,
            card,
            min_grant=self._settings.min_grant_tokens,
            lease_ms=self._lease_ms,
        )
        started_s = self._clock.monotonic_s()
        local = self._breaker.is_open
        if limits and not local:
            try:
                outcome, bound = await self._store.reserve(claim, limits)
                self._breaker.succeeded()
            except StoreUnavailable:
                self._failed()
                local = True
                # It may have been granted unseen: unless this very claim is settled below, this undoes it.
                self._give_back(claim.id)
            except asyncio.CancelledError:
                self._give_back(claim.id)
                raise
        if local:
            for rule in limits:
                if rule.on_store_error == "deny":
                    return store_down(rule)
            self._alarm(limits)
            spent = self._full.spent(claim, limits, started_s)
            if spent is not None:
                return spent
        if local or not limits:
            outcome, bound = self._local.reserve_now(claim, limits)
        if isinstance(outcome, Refusal):
            verdict = refused(outcome, bound, local=local)
            self._full.remember(outcome, bound[outcome.index], verdict, self._clock.monotonic_s())
            return verdict
        spent_s = self._clock.monotonic_s() - started_s
        self._live[claim.id] = _ActiveReservation(started_s, spent_s, bound, local)
        if outcome.filled:
            self._warn(outcome.filled, bound)
        return granted(claim, outcome, bound, limits, self._clock.now(), local=local)

    async def settle(self, reservation: Reservation, usage: Usage, cost_micro: int) -> None:
        live = self._live.pop(reservation.id, None)
        local = reservation.store == "local"
        bound = live.bound if live is not None else ()
        settlement = settlement_for(reservation.id, usage, cost_micro, bound, unseen=local)
        if not reservation.limits:
            self._local.settle_now(settlement)
            return
        # Kept before anything can fail or be cancelled; idempotent in the store, so sending it twice is harmless.
        self._pending.add(settlement)
        if local:
            self._local.settle_now(settlement)
            self._unsettled.set()
            return
        if self._breaker.is_open:
            return
        spent_s = live.spent_s if live is not None else 0.0
        try:
            await self._store.settle(settlement, timeout_s=max(SETTLE_FLOOR_S, self._patience_s * 0.9 - spent_s))
        except StoreUnavailable:
            self._failed()
            self._unsettled.set()
        else:
            self._breaker.succeeded()
            self._pending.confirm(settlement)

    # --------------------------------------------------------------------------------------- admin

    async def usage(self, limits: Sequence[LimitRule]) -> tuple[tuple[BoundRule, Tally], ...]:
        """The current windows of some rules. Raises `StoreUnavailable`: local shares are not the truth."""
        return await self._store.read(limits)

    async def reset(self, limits: Sequence[LimitRule]) -> None:
        """Forget what was used in the current windows. Raises `StoreUnavailable`."""
        await self._store.reset(limits)
        await self._local.reset(limits)
        self._full.forget(limits)

    # ------------------------------------------------------------------------------------ the store

    def _failed(self) -> None:
        if self._breaker.failed(self._clock.monotonic_s()):
            self._opened()

    def _lost(self) -> None:
        self._trip()

    def _trip(self) -> None:
        if self._breaker.trip(self._clock.monotonic_s()):
            self._opened()

    def _opened(self) -> None:
        self._tripped.set()
        _log.error("the store of the limits does not answer: each replica hands out its share of every limit")
        if self._on_degraded is not None:
            self._on_degraded(True)

    async def _guard(self) -> None:
        """Bring the store back: only this task waits for it while the breaker is open."""
        while True:
            await self._tripped.wait()
            self._tripped.clear()
            while self._breaker.is_open:
                await self._store.close()
                await asyncio.sleep(self._breaker.wait_s(self._clock.monotonic_s()))
                try:
                    await self._store.open()
                    await self._release_dead()
                except StoreUnavailable:
                    self._breaker.probe_failed(self._clock.monotonic_s())
                else:
                    self._breaker.close()
            self._alarmed = False
            self._unsettled.set()
            _log.warning("the store of the limits answers again; %d settlements are pending", len(self._pending))
            if self._on_degraded is not None:
                self._on_degraded(False)

    async def _release_dead(self) -> None:
        """Free what this gateway's dead processes held, or their users stay locked out until the leases expire."""
        while self._dead_holders:
            released = await self._store.release(self._dead_holders[-1])
            self._dead_holders.pop()
            if released:
                _log.warning("released %d claims on limits that a dead process held", released)

    async def _janitor(self) -> None:
        """Renew the leases of running requests, free those of dead ones, and settle what is left to settle."""
        due_s = self._clock.monotonic_s() + self._settings.sweep_s
        while True:
            wait_s = due_s - self._clock.monotonic_s()
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._unsettled.wait()
            except TimeoutError:
                due_s = self._clock.monotonic_s() + self._settings.sweep_s
                await self._sweep()
            self._unsettled.clear()
            if self._breaker.is_open:
                continue
            if not await self._flush():
                await asyncio.sleep(RETRY_S)
                self._unsettled.set()

    async def _sweep(self) -> None:
        oldest_s = self._clock.monotonic_s() - self._settings.max_lease_s
        for claim_id in [name for name, live in self._live.items() if live.started_s < oldest_s]:
            del self._live[claim_id]
        await self._local.renew([name for name, live in self._live.items() if live.local], self._lease_ms)
        await self._local.sweep(BATCH)
        if self._breaker.is_open:
            return
        seen = [name for name, live in self._live.items() if not live.local]
        try:
            for start in range(0, len(seen), BATCH):
                await self._store.renew(seen[start : start + BATCH], self._lease_ms)
            while await self._store.sweep(BATCH) == BATCH:
                pass
        except StoreUnavailable:
            self._failed()

    async def _flush(self) -> bool:
        """Send what is pending; False when some of it must be tried again."""
        while len(self._pending) and not self._breaker.is_open:
            batch = self._pending.batch(BATCH)
            answers = await asyncio.gather(*map(self._store.settle, batch), return_exceptions=True)
            for settlement, answer in zip(batch, answers, strict=True):
                if not isinstance(answer, BaseException):
                    self._pending.confirm(settlement)
                elif not isinstance(answer, StoreUnavailable):
                    raise answer
            if any(isinstance(answer, StoreUnavailable) for answer in answers):
                self._failed()
                return False
        return True

    # -------------------------------------------------------------------------------------- memory

    def _give_back(self, claim_id: str) -> None:
        self._pending.add(Settlement(claim_id, 0, 0, 0, (), void=True))
        self._unsettled.set()

    def _warn(self, filled: Sequence[tuple[int, float]], bound: Sequence[BoundRule]) -> None:
        for index, share in filled:
            mark = passed_threshold(bound[index].rule, share)
            if mark is None or (bound[index].key, mark) in self._warned:
                continue
            if len(self._warned) >= 10_000:
                self._warned.clear()
            self._warned.add((bound[index].key, mark))
            _log.warning("limit %s of %s reached %d %%", bound[index].rule.id, bound[index].rule.scope_key, mark * 100)
            if self._on_warning is not None:
                self._on_warning(bound[index].rule, mark)

    def _alarm(self, limits: Sequence[LimitRule]) -> None:
        """Once per outage: a lenient policy must not make an outage silent."""
        lenient = None if self._alarmed else next((rule for rule in limits if rule.on_store_error == "allow"), None)
        if lenient is None:
            return
        self._alarmed = True
        _log.critical("requests pass on local shares of limits whose store is down (limit %s)", lenient.id)
        if self._on_alarm is not None:
            self._on_alarm(lenient)
