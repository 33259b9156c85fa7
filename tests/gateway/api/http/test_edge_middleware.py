"""The front door alone: contexts, labels, proxies, admission, and what it adds to every answer."""

from __future__ import annotations

import asyncio
import json
import logging
from ipaddress import ip_network
from typing import Any

import pytest

from gateway.api.http.admission import InFlight
from gateway.api.http.edge_middleware import EdgeMiddleware
from gateway.flow.context import RequestContext, SystemIds
from tests.fakes.manual_clock import ManualClock


class Inner:
    """Remembers contexts; waits on `gate` when there is one."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.contexts.append(scope["state"]["context"])
        if self.gate is not None:
            await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-inner", b"1")]})
        await send({"type": "http.response.body", "body": b"ok"})


def front(inner: Inner, **changes: Any) -> EdgeMiddleware:
    settings: dict[str, Any] = {
        "clock": ManualClock(),
        "ids": SystemIds(),
        "in_flight": InFlight(),
        "max_in_flight": 2,
        "max_header_bytes": 2000,
        "request_timeout_s": 60.0,
    }
    return EdgeMiddleware(inner, **{**settings, **changes})


async def call(
    door: EdgeMiddleware,
    *headers: tuple[bytes, bytes],
    path: str = "/v1/x",
    host: bytes | None = b"gw:80",
    version: str = "1.1",
) -> Any:
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "http_version": version,
        "headers": [*([] if host is None else [(b"host", host)]), *headers],
        "client": ("10.0.0.9", 5),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await door(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


async def test_every_answer_carries_our_id_and_the_security_headers() -> None:
    inner = Inner()
    status, headers, _ = await call(front(inner))
    assert status == 200
    assert headers[b"x-request-id"].decode() == str(inner.contexts[0].request_id)
    assert inner.contexts[0].request_id.version == 7
    assert headers[b"cache-control"] == b"no-store"
    assert b"x-client-request-id" not in headers


@pytest.mark.parametrize("label", [b"a b", b"x" * 129, b"", "ñ".encode(), b"a\x1b[31m"])
async def test_a_client_id_that_is_no_plain_label_is_dropped(label: bytes) -> None:
    inner = Inner()
    _, headers, _ = await call(front(inner), (b"x-request-id", label))
    assert inner.contexts[0].client.client_request_id is None
    assert b"x-client-request-id" not in headers


async def test_a_strangers_forwarded_address_is_no_address() -> None:
    inner = Inner()
    await call(front(inner), (b"x-forwarded-for", b"1.2.3.4"))
    assert inner.contexts[0].client.ip == "10.0.0.9"
    assert inner.contexts[0].client.forwarded_for is None


async def test_behind_a_trusted_proxy_the_nearest_stranger_is_the_client() -> None:
    inner = Inner()
    door = front(inner, trusted_proxies=[ip_network("10.0.0.8/31")])
    await call(door, (b"x-forwarded-for", b"6.6.6.6, 1.2.3.4:51234"), (b"x-forwarded-for", b"10.0.0.8"))
    assert inner.contexts[0].client.ip == "1.2.3.4"
    assert inner.contexts[0].client.forwarded_for == "6.6.6.6, 1.2.3.4:51234, 10.0.0.8"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
async def test_probes_over_http_1_0_need_no_host_and_are_addressed_as_balancers_do(path: str) -> None:
    door = front(Inner(), allowed_hosts=("gateway.example",))
    assert (await call(door, path=path, host=None, version="1.0"))[0] == 200
    assert (await call(door, path=path, host=b"10.1.2.3:8080"))[0] == 200
    assert (await call(door, path=path, host=None, version="1.1"))[0] == 400
    assert (await call(door, (b"host", b"gw"), path=path))[0] == 400
    assert (await call(door, path=path, host=b"a b"))[0] == 400


async def test_other_paths_need_a_host_in_every_version() -> None:
    assert (await call(front(Inner()), host=None, version="1.0"))[0] == 400
    assert (await call(front(Inner()), host=None, version="1.1"))[0] == 400


async def test_data_class_purpose_and_trace_are_read() -> None:
    inner = Inner()
    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await call(
        front(inner),
        (b"x-esclusa-data-class", b"internal"),
        (b"x-esclusa-purpose", b"support"),
        (b"traceparent", trace),
    )
    (context,) = inner.contexts
    assert (context.data_class, context.purpose) == ("internal", "support")
    assert context.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_hosts_outside_the_list_are_refused() -> None:
    inner = Inner()
    door = front(inner, allowed_hosts=("gateway.example",))
    assert (await call(door, host=b"other.example"))[0] == 400
    assert (await call(door, host=b"Gateway.Example:8080"))[0] == 200
    assert len(inner.contexts) == 1


async def test_beyond_the_admission_limit_requests_are_told_to_come_back() -> None:
    inner, in_flight = Inner(), InFlight()
    inner.gate = asyncio.Event()
    door = front(inner, in_flight=in_flight)
    running = [asyncio.create_task(call(door)) for _ in range(2)]
    await asyncio.sleep(0)
    status, headers, body = await call(door)
    assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
    assert headers[b"retry-after"] == b"1"
    assert in_flight.rejected == 1
    inner.gate.set()
    assert [answer[0] for answer in await asyncio.gather(*running)] == [200, 200]
    assert in_flight.count == 0
    assert (await call(door))[0] == 200


async def test_at_the_limit_an_administrator_still_gets_in() -> None:
    inner = Inner()
    inner.gate = asyncio.Event()
    door = front(inner, operator_slots=4)
    running = [asyncio.create_task(call(door)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (await call(door))[0] == 503
    operator = asyncio.create_task(call(door, path="/admin/v1/revocations"))
    await asyncio.sleep(0)
    inner.gate.set()
    assert (await operator)[0] == 200
    assert [answer[0] for answer in await asyncio.gather(*running)] == [200, 200]


async def test_what_nobody_records_is_counted_once() -> None:
    told: list[tuple[int, str, str | None]] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await Inner()(scope, receive, send)

    door = front(
        Inner(),
        max_in_flight=1,
        direct={"/v1/recorded": endpoint},
        count=lambda answer, count: told.append((answer.status, answer.code, answer.source)),
    )
    await call(door, path="/v1/models")
    await call(door, path="/v1/recorded")
    await call(door, path="/livez")
    await call(door, (b"host", b"two"))
    await call(door, (b"x-a", b"y" * 3000))
    assert told == [
        (200, "", "10.0.0.9"),
        (400, "invalid_host", "10.0.0.9"),
        (431, "headers_too_large", "10.0.0.9"),
    ]


async def test_probes_pass_the_admission_limit() -> None:
    inner = Inner()
    assert (await call(front(inner, max_in_flight=0), path="/livez"))[0] == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
async def test_probes_are_logged_for_debugging_only(caplog: pytest.LogCaptureFixture, path: str) -> None:
    caplog.set_level(logging.DEBUG, "esclusa.access")
    await call(front(Inner()), path=path)
    await call(front(Inner()), path="/v1/x")
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.INFO]


async def test_the_deadline_is_set_from_arrival() -> None:
    inner = Inner()
    await call(front(inner))
    (context,) = inner.contexts
    assert context.deadline_s == context.started_s + 60


async def test_too_many_header_bytes_are_refused() -> None:
    inner = Inner()
    status, headers, _ = await call(front(inner), (b"x-a", b"y" * 3000))
    assert (status, headers[b"connection"]) == (431, b"close")
    assert inner.contexts == []


async def test_a_failing_application_frees_its_place() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    in_flight = InFlight()
    door = EdgeMiddleware(
        broken,
        clock=ManualClock(),
        ids=SystemIds(),
        in_flight=in_flight,
        max_in_flight=2,
        max_header_bytes=2000,
        request_timeout_s=1.0,
    )
    with pytest.raises(RuntimeError):
        await call(door)
    assert in_flight.count == 0
