"""The Lua scripts against the Python counters, step by step, and the sum of what is held against what is in flight."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.flow.context import SystemClock
from gateway.flow.values import LimitRule
from gateway.limits.claim import Claim, Grant, Settlement, Tally
from gateway.limits.local import LocalStore, _Counter
from gateway.limits.store import ValkeyStore
from gateway.storage.valkey import ValkeyLink

_numbers = itertools.count(1)
LEASE_MS = 600_000

# For every counter, the sum over all lease records: what the counters must hold at any moment.
SUM_OF_LEASES = """
local sums = {}
for _, packed in ipairs(redis.call('HVALS', KEYS[1])) do
  local record = cmsgpack.unpack(packed)
  for _, key in ipairs(record[4]) do
    local s = sums[key] or {0, 0, 0}
    sums[key] = {s[1] + record[1], s[2] + record[2], s[3] + record[3]}
  end
  for _, key in ipairs(record[5]) do sums[key] = {(sums[key] or {0})[1] + 1} end
end
local out = {}
for key, s in pairs(sums) do out[#out + 1] = key; out[#out + 1] = table.concat(s, ' ') end
return out
"""

limit = st.one_of(st.none(), st.integers(0, 60))
# A day's budget, a rate, and a sliding window so long that the milliseconds between two calls do not matter.
spans = st.sampled_from([(None, False), (80_000, False), (10**9, True)])


@st.composite
def limit_rules(draw: st.DrawFn) -> LimitRule:
    window_s, sliding = draw(spans)
    return LimitRule(
        id="r",
        scope="user",
        scope_key="user:acme/ana",
        window=draw(st.sampled_from(["day", "month"])),
        window_s=window_s,
        sliding=sliding,
        requests=draw(limit),
        tokens=draw(st.one_of(st.none(), st.integers(0, 400))),
        tokens_in=draw(st.one_of(st.none(), st.integers(0, 200))),
        tokens_out=draw(st.one_of(st.none(), st.integers(0, 200))),
        concurrent=draw(st.one_of(st.none(), st.integers(0, 4))),
        cost_micro=draw(st.one_of(st.none(), st.integers(0, 300))),
        warn_at=draw(st.sampled_from([(), (0.5,), (0.8, 0.95)])),
    )


@dataclass(frozen=True)
class Step:
    verb: str
    number: int
    prompt: int
    output: int
    choices: int
    price: int


steps = st.builds(
    Step,
    verb=st.sampled_from(["reserve", "reserve", "reserve", "settle", "settle", "settle again", "expire", "reset"]),
    number=st.integers(0, 5),
    prompt=st.integers(0, 60),
    output=st.integers(0, 120),
    choices=st.integers(1, 3),
    price=st.integers(0, 3_000_000),
)


class Pair:
    """The two implementations, given the same steps."""

    def __init__(self, server: redis.asyncio.Redis, url: str, chosen: tuple[LimitRule, ...]) -> None:
        prefix = f"model-{next(_numbers)}"
        self.server, self.rules = server, chosen
        self.real = ValkeyStore(ValkeyLink(url, connect_timeout_s=30), clock=SystemClock(), prefix=prefix, timeout_s=10)
        self.model = LocalStore(clock=SystemClock(), prefix=prefix)
        self.prefix, self.live, self.done, self.count = prefix, list[str](), list[str](), 0

    async def age(self, requests: int, tokens: int) -> None:
        """Pretend that the windows before were used."""
        for bound, _ in await self.real.read(self.rules):
            if bound.previous_key is not None:
                before = Tally(requests=requests, used_in=tokens, used_out=tokens // 2, used_cost=tokens, held_in=3)
                fields: dict[Any, Any] = {
                    "r": requests,
                    "ui": tokens,
                    "uo": tokens // 2,
                    "uc": tokens,
                    "hi": 3,
                    "ho": 0,
                    "hc": 0,
                }
                await self.server.hset(bound.previous_key, mapping=fields)
                self.model._counters[bound.previous_key] = _Counter(before, bound.window.end_ms)

    async def take(self, step: Step) -> None:
        if step.verb == "reserve":
            self.count += 1
            claim = Claim(
                f"c{self.count}", step.prompt, step.output * step.choices, step.choices,
                step.prompt * step.price // 3, step.price, 64, LEASE_MS,
            )  # fmt: skip
            real, _ = await self.real.reserve(claim, self.rules)
            model, _ = await self.model.reserve(claim, self.rules)
            assert replace(real, now_ms=0) == replace(model, now_ms=0)
            if isinstance(real, Grant):
                self.live.append(claim.id)
        elif step.verb == "reset":
            await self.real.reset(self.rules)
            await self.model.reset(self.rules)
        elif step.verb == "expire" and self.live:
            name = self.live[step.number % len(self.live)]
            await self.server.zadd(f"{{{self.prefix}}}:leases", {name: 0})
            await self.model.renew([name], -10 * LEASE_MS)
            assert await self.real.sweep(10) == await self.model.sweep(10) == 1
            self.live.remove(name)
            self.done.append(name)
        else:
            names = self.live if step.verb == "settle" else self.done
            if names:
                name = names[step.number % len(names)]
                used = Settlement(name, step.prompt, step.output, step.price // 1000, ())
                assert await self.real.settle(used) == await self.model.settle(used)
                if step.verb == "settle":
                    self.live.remove(name)
                    self.done.append(name)

    async def check(self) -> None:
        real, model = await self.real.read(self.rules), await self.model.read(self.rules)
        assert [tally for _, tally in real] == [tally for _, tally in model]
        flat: list[bytes] = await self.server.eval(SUM_OF_LEASES, 1, f"{{{self.prefix}}}:lease")
        in_flight = {
            key.decode(): [int(amount) for amount in sums.split()]
            for key, sums in zip(flat[::2], flat[1::2], strict=True)
        }
        for bound, tally in real:
            assert [tally.held_in, tally.held_out, tally.held_cost] == in_flight.get(bound.key, [0, 0, 0])
            if bound.concurrency_key is not None:
                assert [tally.in_flight] == in_flight.get(bound.concurrency_key, [0])
        assert len(self.model._leases) == len(self.live)


async def run(url: str, chosen: list[LimitRule], before: tuple[int, int], plan: list[Step]) -> None:
    named = tuple(replace(rule, id=f"r{index}") for index, rule in enumerate(chosen))
    server: Any = redis.asyncio.Redis.from_url(url)
    pair = Pair(server, url, named)
    await pair.real.open()
    try:
        await pair.age(*before)
        for step in plan:
            await pair.take(step)
            await pair.check()
    finally:
        await pair.real.close()
        await server.aclose()


@settings(max_examples=150, deadline=None)
@given(
    chosen=st.lists(limit_rules(), min_size=1, max_size=4),
    before=st.tuples(st.integers(0, 40), st.integers(0, 150)),
    plan=st.lists(steps, max_size=25),
)
def test_scripts_and_model_agree_and_held_equals_in_flight(
    valkey_url: str, chosen: list[LimitRule], before: tuple[int, int], plan: list[Step]
) -> None:
    asyncio.run(run(valkey_url, chosen, before, plan))
