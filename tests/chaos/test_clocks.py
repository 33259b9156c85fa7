"""A gateway whose clock is months ahead, and the same database months later."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from tests.chaos.conftest import Count, Start
from tests.fakes.load import burst, reconcile

AHEAD = timedelta(days=121)


async def test_a_clock_four_months_ahead_for_five_requests(gateway: Start, count: Count) -> None:
    one = gateway()
    await asyncio.to_thread(one.start, clock_ahead=AHEAD)
    wrong = await burst(one.port, one.token(clock_ahead=AHEAD), 5, max_tokens=2)
    assert (await reconcile(one.rows, wrong)).wrong == []
    misdated = one.metric("esclusa_audit_misdated")
    assert await asyncio.to_thread(one.stop) == 0
    await asyncio.to_thread(one.start)
    right = await burst(one.port, one.token(), 20, max_tokens=2)
    trail = await reconcile(one.rows, [*wrong, *right])
    stray = one.metric("esclusa_audit_stray_rows")
    then = datetime.now(UTC) + AHEAD
    await one.rows("SELECT audit_ensure_partitions(3, $1)", then)
    left = (await one.rows("SELECT count(*) FROM audit_event_default"))[0][0]
    after = await reconcile(one.rows, [*wrong, *right])
    assert await asyncio.to_thread(one.stop) == 0
    verified = await asyncio.to_thread(one.verify)
    count(requests=25, clean=trail.clean, lost=trail.lost, misdated=misdated, stray=stray, left_in_default=left)
    assert trail.wrong == after.wrong == []
    # Two of each request, and those by which the run itself is linked and sealed.
    assert misdated == stray
    assert stray is not None
    assert stray >= 10
    assert left == 0
    assert verified.returncode == 0, verified.stdout
    assert one.log_lines("a clock is wrong")


async def test_a_clock_three_days_behind(gateway: Start, count: Count) -> None:
    one = gateway()
    behind = timedelta(days=-3)
    await asyncio.to_thread(one.start, clock_ahead=behind)
    asked = await burst(one.port, one.token(clock_ahead=behind), 5, max_tokens=2)
    trail = await reconcile(one.rows, asked)
    count(requests=trail.ids, clean=trail.clean, lost=trail.lost)
    assert trail.wrong == []
    assert one.log_lines("clock differs from Postgres")
