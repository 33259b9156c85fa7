"""Descriptors: what fits below a limit, that it is raised, and how a lack of them is told."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.backends.openai_http import OpenAIBackend
from gateway.descriptors import is_shortage, plan_descriptors
from gateway.errors import GatewayError
from gateway.flow.boundary import BOUNDARY
from gateway.flow.context import SystemIds
from gateway.http_settings import HttpSettings
from gateway.server import make_server, plan_for
from gateway.settings import Settings, UpstreamSettings
from tests.fakes.exhausted import no_descriptor_left
from tests.fakes.openai_upstream import Upstream

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("limit", "upstreams", "fits"),
    [
        (65_536, 256, (4096, 1024, False)),
        (4444, 256, (4096, 1024, False)),  # exactly what is needed
        (4443, 256, (4095, 1024, True)),
        (1024, 256, (676, 310, True)),
        (1024, 0, (932, 466, True)),
        (256, 256, (110, 54, True)),
        (64, 256, (2, 1, True)),  # below what the gateway itself needs: one at a time
    ],
)
def test_admission_is_fitted_to_the_limit(limit: int, upstreams: int, fits: tuple[int, int, bool]) -> None:
    plan = plan_descriptors(limit, connections=4096, requests=1024, upstreams=upstreams, database_pool=10)
    assert (plan.connections, plan.requests, plan.lowered) == fits
    if plan.lowered and limit > 100:
        assert 92 + plan.connections + min(upstreams, plan.requests) <= limit
    assert plan.requests <= plan.connections


def test_a_connection_for_each_operator_is_left_when_all_others_are_at_work() -> None:
    http = {"max_connections": 100, "max_concurrent_requests": 1024, "operator_slots": 16}
    plan = plan_for(Settings.model_validate({"http": http}), 65_536)
    assert (plan.connections, plan.requests, plan.lowered) == (100, 84, False)


@pytest.mark.parametrize(("soft", "hard", "reached"), [(64, 512, 512), (64, 4096, 1000), (2000, 4096, 2000)])
def test_the_soft_limit_is_raised_as_far_as_it_may_be(soft: int, hard: int, reached: int) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "from gateway.descriptors import raise_limit; print(raise_limit(1000));"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(reached), str(reached)]


def test_a_shortage_is_seen_through_what_wraps_it() -> None:
    wrapped = RuntimeError("the driver failed")
    wrapped.__cause__ = ValueError("the pool failed")
    wrapped.__cause__.__context__ = OSError(errno.EMFILE, "Too many open files")
    assert is_shortage(wrapped)
    assert not is_shortage(ConnectionResetError(errno.ECONNRESET, "reset"))


def test_a_shortage_anywhere_in_a_request_is_overload_and_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GatewayError) as refused, BOUNDARY:
        raise OSError(errno.ENFILE, "Too many open files in system")
    assert (refused.value.status, refused.value.code, refused.value.headers["retry-after"]) == (503, "overloaded", "1")
    assert caplog.records == []


async def test_an_upstream_that_cannot_be_reached_for_lack_of_descriptors_is_overload() -> None:
    async with Upstream() as upstream:
        backend = OpenAIBackend("up", UpstreamSettings(base_url=upstream.url))
        with no_descriptor_left(), pytest.raises(GatewayError) as refused:
            await backend.opened(backend.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        assert backend.status()["state"] == "ready"  # the upstream has done nothing wrong
        await backend.aclose()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_wait_while_there_is_no_descriptor_and_are_then_served(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        served, answers = runner.run(_crowd_without_descriptors())
    assert served <= 8  # what the limit still held
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 204"] * 20


async def _crowd_without_descriptors() -> tuple[int, list[bytes]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_server(app, HttpSettings(shutdown_grace_s=1), SystemIds())
    address = listener.getsockname()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    clients = [socket.socket() for _ in range(20)]
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.1)
    try:
        with no_descriptor_left():
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await asyncio.sleep(0.3)
            served = len(server.server_state.connections)
        answers = [await asyncio.wait_for(loop.sock_recv(client, 100), 10) for client in clients]
    finally:
        for client in clients:
            client.close()
        server.should_exit = True
        await serving
    return served, answers
