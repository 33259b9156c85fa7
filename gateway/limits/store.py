"""The counter store: the contract, and its implementation over one pipelined Valkey connection.

One script per verb, one round trip per call; the server's clock decides. Knows wire formats; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import orjson

from gateway.flow.context import Clock
from gateway.flow.values import LimitRule
from gateway.limits.claim import BoundRule, Claim, Grant, Refusal, RuleBinder, Settlement, Tally, Tightest
from gateway.limits.dimensions import DIMENSIONS, FIELDS, TALLY_FIELDS, Kind, Quantity, lua_dimensions, lua_meters
from gateway.storage.valkey import Reply, ValkeyError, ValkeyLink, encode

SCRIPTS = ("reserve", "settle", "renew", "sweep", "release", "reset")
ROLLS = 3
SCANNED = 1000
"""Claims looked at in one call when those of a dead process are searched."""


class StoreUnavailable(Exception):
    """The counters cannot be reached, or not in time. Says nothing about whether the call took effect."""


class LimitStore(Protocol):
    """Atomic counters. Every method raises `StoreUnavailable` and nothing else."""

    binder: RuleBinder
    on_lost: Callable[[], None] | None
    """Called when the connection breaks; set by whoever owns the breaker."""

    async def open(self) -> None:
        """Connect and prove that an answer comes within the time limit; may be called again after a loss."""
        ...

    async def close(self) -> None: ...

    async def reserve(self, claim: Claim, rules: Sequence[LimitRule]) -> tuple[Grant | Refusal, tuple[BoundRule, ...]]:
        """Hold the claim in all windows or in none; also returns the windows that were looked at."""
        ...

    async def settle(self, settlement: Settlement, *, timeout_s: float | None = None) -> bool:
        """Replace the claim by what was used. False when that was already done."""
        ...

    async def renew(self, ids: Sequence[str], lease_ms: int) -> int:
        """Extend the leases that still exist; returns how many."""
        ...

    async def sweep(self, most: int) -> int:
        """Free up to `most` expired leases; returns how many."""
        ...

    async def release(self, holder: str) -> int:
        """Free all claims of a process that is dead, whose ids start with `holder` and a dot; returns how many."""
        ...

    async def read(self, rules: Sequence[LimitRule]) -> tuple[tuple[BoundRule, Tally], ...]: ...

    async def reset(self, rules: Sequence[LimitRule]) -> None:
        """Forget what was used in the current windows; claims in flight stay held."""
        ...


class _Frame:
    """The wire form of a bound rule, encoded once per window."""

    __slots__ = ("argument", "bound", "count", "keys")

    def __init__(self, bound: BoundRule) -> None:
        rule, window = bound.rule, bound.window
        names = [bound.key]
        if bound.previous_key is not None:
            names.append(bound.previous_key)
        if bound.concurrency_key is not None:
            names.append(bound.concurrency_key)
        limits = {dimension.name: getattr(rule, dimension.name) for dimension in DIMENSIONS}
        fields: dict[str, object] = {
            "start": window.start_ms,
            "finish": window.end_ms,
            "rate": bound.rate,
            "sliding": bound.previous_key is not None,
            "warn": round(min(rule.warn_at, default=2.0) * 1000),
            **{name: limit for name, limit in limits.items() if limit is not None},
        }
        self.bound = bound
        self.count = len(names)
        self.keys = encode(*names)
        self.argument = encode(_json(fields))


class ValkeyStore:
    """`LimitStore` on Valkey or Redis. `timeout_s` bounds what one call may add to a request."""

    def __init__(self, link: ValkeyLink, *, clock: Clock, prefix: str, timeout_s: float = 0.05) -> None:
        self.binder = RuleBinder(prefix)
        self.on_lost: Callable[[], None] | None = None
        self._link = link
        link.on_lost = self._lost
        self._clock = clock
        self._timeout_s = timeout_s
        self._skew_ms = 0
        self._frames: dict[str, _Frame] = {}
        self._leases = encode(f"{self.binder.prefix}:leases", f"{self.binder.prefix}:lease")
        self._sources = {name: _read_script(name) for name in SCRIPTS}
        self._shas: dict[str, str] = {}
        self._heads: dict[tuple[str, int, int], bytes] = {}

    async def open(self) -> None:
        try:
            if not self._link.connected:
                await self._link.connect()
            for name, source in self._sources.items():
                sha = await self._link.call("SCRIPT", "LOAD", source, timeout_s=max(1.0, self._timeout_s))
                self._shas[name] = _text(sha)
            seconds, micros = _pair(await self._link.call("TIME", timeout_s=self._timeout_s))
        except ValkeyError as error:
            await self._link.close()
            raise StoreUnavailable(str(error)) from error
        self._skew_ms = seconds * 1000 + micros // 1000 - self._local_ms()

    async def close(self) -> None:
        await self._link.close()

    async def reserve(self, claim: Claim, rules: Sequence[LimitRule]) -> tuple[Grant | Refusal, tuple[BoundRule, ...]]:
        fields = {
            "id": claim.id,
            "most": claim.output_tokens,
            "choices": claim.choices,
            "fixed": claim.fixed_cost,
            "price": claim.price_out,
            "floor": claim.min_grant,
            "lease": claim.lease_ms,
            **claim.known,
        }
        arguments = encode(_json(fields))
        for _ in range(ROLLS):
            frames = self._frames_of(rules)
            keys, count = self._keys(frames)
            parts = [keys, arguments, *[frame.argument for frame in frames]]
            answer = _text(await self._script("reserve", count, parts, 1 + len(frames), self._timeout_s * 0.8))
            if answer[0] != "R":
                return _outcome(answer), tuple([frame.bound for frame in frames])
            # A window ended on the server's clock: ours is behind or ahead. Follow the server.
            self._skew_ms = int(answer[2:]) - self._local_ms()
        raise StoreUnavailable("the store's clock does not agree with itself")

    async def settle(self, settlement: Settlement, *, timeout_s: float | None = None) -> bool:
        frames = [self._frame(bound) for bound in settlement.bound] if settlement.unseen else []
        keys, count = self._keys(frames)
        unseen = 2 if settlement.void else int(settlement.unseen)
        arguments = encode(_json({"id": settlement.id, "unseen": unseen, **settlement.amounts}))
        parts = [keys, arguments, *[frame.argument for frame in frames]]
        limit_s = self._timeout_s * 0.8 if timeout_s is None else timeout_s
        return await self._script("settle", count, parts, 1 + len(frames), limit_s) == 1

    async def renew(self, ids: Sequence[str], lease_ms: int) -> int:
        keys, count = self._keys([])
        return _number(await self._script("renew", count, [keys, encode(lease_ms, *ids)], 1 + len(ids), 1.0))

    async def sweep(self, most: int) -> int:
        keys, count = self._keys([])
        return _number(await self._script("sweep", count, [keys, encode(most)], 1, 1.0))

    async def release(self, holder: str) -> int:
        keys, count = self._keys([])
        cursor, released = "0", 0
        while True:
            lease = f"{self.binder.prefix}:lease"
            found = _list(await self._call("HSCAN", lease, cursor, "MATCH", f"{holder}.*", "COUNT", SCANNED))
            ids = [_text(name) for name in _list(found[1])[::2]]
            if ids:
                released += _number(await self._script("release", count, [keys, encode(*ids)], len(ids), 1.0))
            cursor = _text(found[0])
            if cursor == "0":
                return released

    async def read(self, rules: Sequence[LimitRule]) -> tuple[tuple[BoundRule, Tally], ...]:
        tallies = []
        for bound in self.binder.bind_all(rules, self._now_ms()):
            fields = await self._call("HMGET", bound.key, *FIELDS)
            in_flight = await self._call("GET", bound.concurrency_key) if bound.concurrency_key else None
            values = [int(value) if isinstance(value, bytes) else 0 for value in _list(fields)]
            in_flight = int(in_flight) if isinstance(in_flight, bytes) else 0
            counted = dict(zip(TALLY_FIELDS, values, strict=True))
            tallies.append((bound, Tally(**counted, in_flight=in_flight)))
        return tuple(tallies)

    async def reset(self, rules: Sequence[LimitRule]) -> None:
        frames = self._frames_of(rules)
        keys, count = self._keys(frames)
        await self._script("reset", count, [keys, *[f.argument for f in frames]], len(frames), 1.0)

    # ------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        if self.on_lost is not None:
            self.on_lost()

    def _local_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _now_ms(self) -> int:
        return self._local_ms() + self._skew_ms

    def _frames_of(self, rules: Sequence[LimitRule]) -> list[_Frame]:
        now_ms = self._now_ms()
        bind, frame = self.binder.bind, self._frame
        return [frame(bind(rule, now_ms)) for rule in rules]

    def _frame(self, bound: BoundRule) -> _Frame:
        frame = self._frames.get(bound.key)
        if frame is None or frame.bound is not bound:
            if len(self._frames) >= 50_000:
                self._frames.clear()
            frame = self._frames[bound.key] = _Frame(bound)
        return frame

    def _keys(self, frames: Sequence[_Frame]) -> tuple[bytes, int]:
        return self._leases + b"".join([f.keys for f in frames]), 2 + sum([f.count for f in frames])

    async def _script(
        self, name: str, key_count: int, parts: Sequence[bytes], argument_count: int, timeout_s: float
    ) -> Reply:
        head = self._heads.get((name, key_count, argument_count))
        if head is None:
            if name not in self._shas:
                raise StoreUnavailable("the scripts were never loaded")
            command = encode("EVALSHA", self._shas[name], key_count)
            head = b"*%d\r\n%b" % (3 + key_count + argument_count, command)
            self._heads[name, key_count, argument_count] = head
        for attempt in (1, 2):
            try:
                return await self._link.send(b"".join((head, *parts)), timeout_s)
            except ValkeyError as error:
                if attempt == 1 and error.code == "NOSCRIPT":
                    await self._call("SCRIPT", "LOAD", self._sources[name])
                    continue
                raise StoreUnavailable(str(error)) from error
        raise StoreUnavailable("the store keeps losing its scripts")

    async def _call(self, *parts: str | bytes | int) -> Reply:
        try:
            return await self._link.call(*parts, timeout_s=1.0)
        except ValkeyError as error:
            raise StoreUnavailable(str(error)) from error


def _outcome(answer: str) -> Grant | Refusal:
    fields = answer.split(" ")
    if fields[0] == "N":
        now, index, used, held, limit, ask, previous = map(int, (fields[1], *fields[3:9]))
        kind, quantity = cast(Kind, fields[2]), cast(Quantity, fields[9])
        return Refusal(now, kind, index, used, held, limit, ask, previous, quantity)
    now, output, clamp, request_index, request_left, token_index, token_left = map(int, fields[1:8])
    filled = tuple(
        (int(index), int(permille) / 1000)
        for index, _, permille in (item.partition(":") for item in fields[8:] if item)
    )
    return Grant(
        now_ms=now,
        output_tokens=output,
        clamped_by=clamp if clamp >= 0 else None,
        requests=Tightest(request_index, request_left) if request_index >= 0 else None,
        tokens=Tightest(token_index, token_left) if token_index >= 0 else None,
        filled=filled,
    )


def _read_script(name: str) -> str:
    folder = Path(__file__).with_name("scripts")
    shared, script = ((folder / f"{part}.lua").read_text("utf-8") for part in ("lease", name))
    return lua_meters() + shared + (lua_dimensions() if name == "reserve" else "") + script


def _json(fields: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:  # an absurd amount beyond 64 bits; the scripts count in doubles
        return json.dumps(fields).encode()


def _text(reply: Reply) -> str:
    if not isinstance(reply, bytes):
        raise StoreUnavailable("the store answered in an unknown form")
    return reply.decode()


def _number(reply: Reply) -> int:
    if not isinstance(reply, int):
        raise StoreUnavailable("the store answered in an unknown form")
    return reply


def _list(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise StoreUnavailable("the store answered in an unknown form")
    return reply


def _pair(reply: Reply) -> tuple[int, int]:
    first, second = _list(reply)
    return int(_text(first)), int(_text(second))
