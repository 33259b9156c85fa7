"""More than a gateway can take: descriptors, readers that do not read, thousands at once. It refuses, and goes on."""

from __future__ import annotations

import asyncio
import collections
import json
import socket

from tests.chaos.conftest import Count, Start
from tests.fakes.gateway_process import GatewayProcess
from tests.fakes.load import Asked, ask, burst, reconcile
from tests.fakes.stage import UpstreamThread


async def still_serves(gateway: GatewayProcess) -> None:
    """Whoever comes now is served, after the moment that it takes to let go of the others."""
    for _ in range(100):
        if (await ask(gateway.port, gateway.token("u-2"), max_tokens=2)).status == 200:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"nobody is served any more: {gateway.readiness()} {gateway.tail()}")


async def counted(gateway: GatewayProcess, at_least: int) -> int:
    """Refusals at the door have no records of their own: how many the aggregated ones count, once they are written."""
    found = 0
    for _ in range(100):
        rows = await gateway.rows("SELECT rec FROM audit_event WHERE phase = 'aggregated'")
        found = sum(json.loads(row["rec"])["aggregate"]["count"] for row in rows)
        if found >= at_least:
            break
        await asyncio.sleep(0.2)
    return found


def kinds(asked: list[Asked]) -> dict[str, int]:
    return dict(collections.Counter(f"{one.status}" if one.status else "no answer" for one in asked))


async def assert_each_is_served_or_counted(one: GatewayProcess, asked: list[Asked], count: Count) -> None:
    """Some get whole answers with their records, the rest 503 and a place in a count, and the next are served."""
    await still_serves(one)
    served = [each for each in asked if each.status == 200]
    trail = await reconcile(one.rows, served)
    refused = len(asked) - len(served)
    aggregated = await counted(one, refused)
    count(**{f"status_{kind}": n for kind, n in kinds(asked).items()}, clean=trail.clean, aggregated=aggregated)
    assert {each.status for each in asked} == {200, 503}
    assert trail.wrong == []
    assert aggregated >= refused
    assert all(each.done for each in served)


async def test_two_hundred_and_fifty_six_descriptors_and_four_hundred_callers(gateway: Start, count: Count) -> None:
    one = gateway()
    await asyncio.to_thread(one.start, before=["prlimit", "--nofile=256:256"])
    asked = await burst(one.port, one.token(), 400, at_once=400, max_tokens=60)
    await assert_each_is_served_or_counted(one, asked, count)


async def test_callers_that_never_read(gateway: Start, count: Count, upstream: UpstreamThread) -> None:
    upstream.script.words = tuple("x" * 2000 for _ in range(2000))
    upstream.script.delay_s = 0.002
    one = gateway(http={"max_concurrent_requests": 100})
    await asyncio.to_thread(one.start)
    body = json.dumps(
        {"model": "mini", "messages": [{"role": "user", "content": "hola"}], "max_tokens": 2000, "stream": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {one.token('u-slow')}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    loop, sockets = asyncio.get_running_loop(), []
    for _ in range(60):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        held.setblocking(False)
        await loop.sock_connect(held, ("127.0.0.1", one.port))
        await loop.sock_sendall(held, head.encode() + body)
        sockets.append(held)
    await asyncio.sleep(5)
    others = await burst(one.port, one.token("u-3"), 10, at_once=5, max_tokens=3)
    for held in sockets:
        held.close()
    slow = "SELECT count(*) FROM audit_event WHERE subject = 'u-slow' AND phase = $1"
    for _ in range(150):
        ended = (await one.rows(slow, "completion"))[0][0]
        if ended == 60:
            break
        await asyncio.sleep(0.2)
    begun = (await one.rows(slow, "intent"))[0][0]
    count(holding=60, others=kinds(others), intents=begun, completions=ended)
    assert kinds(others) == {"200": 10}
    assert (begun, ended) == (60, 60)


async def test_a_thousand_and_five_hundred_at_once(gateway: Start, count: Count) -> None:
    one = gateway(http={"max_concurrent_requests": 200})
    await asyncio.to_thread(one.start)
    asked = await burst(one.port, one.token(), 1500, at_once=1500, max_tokens=20)
    await assert_each_is_served_or_counted(one, asked, count)
