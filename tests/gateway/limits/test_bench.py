"""The limiter's own measurement runs against the real store and leaves no use behind."""

from __future__ import annotations

import redis.asyncio

from gateway.limits.bench import measure


async def test_it_reports_one_row_per_concurrency(valkey_url: str, valkey: redis.asyncio.Redis) -> None:
    rows = await measure(valkey_url, concurrency=(1, 4), requests=40)
    assert [(row.concurrency, row.requests) for row in rows] == [(1, 40), (4, 40)]
    assert all(row.wall_us > 0 for row in rows)
    left = [await valkey.hget(key, "uo") for key in await valkey.keys("{bench-*}:w:*")]
    assert left
    assert set(left) == {b"0"}
