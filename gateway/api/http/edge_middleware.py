"""The first and last thing a request meets, pure ASGI: its id and context, header rules, admission, the access log.

Authentication is not here: it is attached to every route, because a middleware can be walked around (T15).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.http.admission import PROBES, Admission, InFlight
from gateway.api.http.dialects import DialectOf, dialect_in, every_request_openai
from gateway.api.http.proxies import Network, TrustedProxies
from gateway.api.http.refusals import Count, Unrecorded
from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest, Unavailable
from gateway.flow.context import Client, Clock, IdSource, RequestContext

_access = logging.getLogger("esclusa.access")
_HOST = re.compile(rb"\A(?:[A-Za-z0-9_.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_LABEL = re.compile(rb"\A[\x21-\x7e]{1,128}\Z")
_TRACEPARENT = re.compile(rb"\A[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_HEADERS = 100
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]


class EdgeMiddleware:
    """Outermost application. Puts `RequestContext` into `scope["state"]["context"]`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        ids: IdSource,
        in_flight: InFlight,
        max_in_flight: int,
        max_header_bytes: int,
        request_timeout_s: float,
        allowed_hosts: tuple[str, ...] = ("*",),
        trusted_proxies: Sequence[Network] = (),
        operator_slots: int = 16,
        direct: Mapping[str, ASGIApp] | None = None,
        count: Count | None = None,
        dialect_of: DialectOf = every_request_openai,
    ) -> None:
        """`direct`: exact paths whose POST goes straight to its endpoint, past the framework's router and layers.

        They are ordinary routes too, so that every other method and the route list behave as usual. `count` hears of
        every answer but probes and those endpoints, which record what they do.
        """
        self._direct, self._dialect_of = direct or {}, dialect_of
        self._app, self._clock, self._ids = app, clock, ids
        self._admission = Admission(in_flight, max_in_flight, operator_slots)
        self._count, self._max_header_bytes = count, max_header_bytes
        self._request_timeout_s = request_timeout_s
        self._hosts = None if "*" in allowed_hosts else frozenset(host.lower().encode() for host in allowed_hosts)
        self._proxies = TrustedProxies(trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, refusal = self._examine(scope)
        dialect = self._dialect_of(scope)
        scope.setdefault("state", {}).update(context=context, dialect=dialect)
        extra = [(b"x-request-id", str(context.request_id).encode()), *SECURITY_HEADERS]
        if context.client.client_request_id is not None:
            extra.append((b"x-client-request-id", context.client.client_request_id.encode()))
        status = 0

        async def finish(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
                if dialect.headers is not None:
                    message["headers"] += dialect.headers(message["headers"], context)
            await send(message)

        path, source, app = scope["path"], context.client.ip, None
        lane = self._admission.enter(path, source) if refusal is None else None
        if lane is None:
            full = Unavailable("Too many requests are in flight.", code="overloaded", retry_after_s=1)
            await _refuse(refusal or full, scope, context, finish)
        else:
            try:
                app = self._direct.get(path) if context.method == "POST" else None
                await (app or self._app)(scope, receive, finish)
            finally:
                self._admission.leave(lane, source)
        if self._count is not None and app is None and status and path not in PROBES:
            code, route = scope["state"].get("error_code", ""), getattr(scope.get("route"), "path", "-")
            self._count(Unrecorded(context.request_id, status, code, source, route), 1)
        level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
        if _access.isEnabledFor(level):
            _access.log(
                level,
                "request",
                extra={
                    "request_id": str(context.request_id),
                    "method": context.method,
                    "path": context.route,
                    "status": status,
                    "duration_ms": round((self._clock.monotonic_s() - context.started_s) * 1e3, 2),
                    "client_ip": context.client.ip,
                },
            )

    def _examine(self, scope: Scope) -> tuple[RequestContext, GatewayError | None]:
        size, hosts = 0, 0
        host = client_id = agent = trace = data_class = purpose = None
        forwarded: list[bytes] = []
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"user-agent":
                agent = value
            elif name == b"x-request-id":
                client_id = value if _LABEL.match(value) else None
            elif name == b"x-forwarded-for":
                forwarded.append(value)
            elif name == b"traceparent":
                trace = _TRACEPARENT.match(value)
            elif name == b"x-esclusa-data-class":
                data_class = value
            elif name == b"x-esclusa-purpose":
                purpose = value
        peer = scope["client"][0] if scope.get("client") else None
        started = self._clock.monotonic_s()
        context = RequestContext(
            request_id=self._ids.uuid7(),
            received_at=self._clock.now(),
            started_s=started,
            route=scope["path"][:256],
            method=scope["method"],
            client=Client(
                ip=self._proxies.client(peer, forwarded),
                user_agent=agent.decode("latin-1")[:256] if agent is not None else None,
                client_request_id=client_id.decode() if client_id is not None else None,
                forwarded_for=_chain(forwarded) if forwarded and self._proxies.trust(peer) else None,
            ),
            trace_id=trace.group(1).decode() if trace else None,
            deadline_s=started + self._request_timeout_s,
            data_class=_label(data_class),
            purpose=_label(purpose),
        )
        if size > self._max_header_bytes or len(scope["headers"]) > MAX_HEADERS:
            return context, HeadersTooLarge(
                f"The headers exceed {self._max_header_bytes} bytes or {MAX_HEADERS} lines.",
                headers={"connection": "close"},
            )
        if not self._host_is_fine(scope, host, hosts):
            return context, InvalidRequest(
                "The request needs exactly one `Host` that this gateway serves.",
                code="invalid_host",
                headers={"connection": "close"},
            )
        return context, None

    def _host_is_fine(self, scope: Scope, host: bytes | None, count: int) -> bool:
        """Probes come from balancers and kubelets: addressed by IP, or over HTTP/1.0 without any `Host`."""
        if scope["path"] in PROBES:
            if count == 0:
                return bool(scope.get("http_version") == "1.0")
            return count == 1 and _HOST.match(host or b"") is not None
        return count == 1 and self._known_host(host or b"")

    def _known_host(self, host: bytes) -> bool:
        if _HOST.match(host) is None:
            return False
        return self._hosts is None or host.lower().rsplit(b":", 1)[0] in self._hosts or host.lower() in self._hosts


def _chain(lines: Sequence[bytes]) -> str:
    return ", ".join(line.decode("latin-1") for line in lines)[:256]


def _label(value: bytes | None) -> str | None:
    return value.decode() if value is not None and _LABEL.match(value) else None


async def _refuse(error: GatewayError, scope: Scope, context: RequestContext, send: Send) -> None:
    scope["state"]["error_code"] = error.code
    body = dialect_in(scope).error_body(error, str(context.request_id))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
