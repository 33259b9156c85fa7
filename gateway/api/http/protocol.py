"""uvicorn's httptools protocol with what it lacks: a bound for every state of a connection, and no second reading.

Whatever a client sends, a byte is body or header by one parser's word only. A request to upgrade is answered as if it
had not asked (RFC 9110 section 7.8), and where the framing is in doubt nothing more is read (T28, T29).
"""

from __future__ import annotations

import asyncio
import socket
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.api.http.connection_limits import ConnectionLimits, Phase
from gateway.api.http.connection_refusals import (
    BODY_LATE,
    CONNECT_REFUSED,
    HEADERS_LATE,
    HEADERS_TOO_LARGE,
    MALFORMED,
    TOO_MANY_CONNECTIONS,
    Refusal,
    rendered,
)
from gateway.api.http.connections import Connections
from gateway.api.http.refusals import Refusals, Unrecorded
from gateway.api.http.request_target import read_target
from gateway.flow.context import IdSource

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADING = frozenset({b"upgrade", b"http2-settings"})
FRAMING_PER_BYTE = 8
"""Bytes of chunk framing that a byte of body may cost; chunks of one byte have five."""
PROBE_AFTER_S, PROBE_AGAIN_S = 0.5, 0.25
TURN_AWAY_S = 2.0
"""How long a connection too many may take to ask."""


class RefusedRequestError(Exception):
    """Ends the parsing of a connection; which answer it gets is kept there."""


class GuardedProtocol(HttpToolsProtocol):
    """Made by `guarded`; one per connection. Cycles write and close through it, so that it knows what is under way."""

    registry: Connections
    limits: ConnectionLimits
    ids: IdSource
    refusals: Refusals | None

    # As in uvicorn: the loop gives a stream protocol a `Transport`, where asyncio declares its base.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else None
        self.phase, self.since_s = Phase.HEAD, self.loop.time()
        self.parser = httptools.HttpRequestParser(self)
        self._cycles: deque[RequestResponseCycle] = deque()
        """Requests whose answer is not complete, the running one first."""
        self._written_bytes = 0
        self._apart_bytes = 0
        """Count the bytes since the last header block or body byte: headers, chunk framing, trailers."""
        self._discarded_bytes = 0
        self._fresh, self._begun, self._in_body, self._upgrading = True, False, False, False
        self._deaf = False
        """Nothing that still comes is read as HTTP."""
        self._lingering = self._half_closed = False
        self._refusal = MALFORMED
        self._persists = False
        """Whether the request being read lets the connection live on."""
        self._timer: asyncio.TimerHandle | None = None
        _set_user_timeout(transport, self.limits.write_timeout_s)
        self._admitted = self.registry.admit(self)
        if not self._admitted:
            # Refused once it has asked: closed with bytes unread, it would be reset before it reads why.
            self._timer = self.loop.call_later(TURN_AWAY_S, self._turn_away)

    # ------------------------------------------------------------------------------------------- what comes in

    def data_received(self, data: bytes) -> None:
        if not self._admitted and not self._find_room():
            self._turn_away()
            return
        if not self._deaf:
            self._apart_bytes += len(data)
            self._feed(data)
            self._apart_bytes = max(self._apart_bytes, 0)
            if self._apart_bytes > self.limits.max_header_bytes and not self._deaf:
                self._give_up(HEADERS_TOO_LARGE)
            self._settle()
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > self.limits.max_discarded_bytes:
            self.transport.abort()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._upgrading:
                    self._give_up(MALFORMED)
                    return
                # The parser has taken the body for another protocol. The same request without its wish, and what
                # came behind its header block, go to a new one.
                data = self._without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._give_up(self._refusal)
                return

    def _without_upgrade(self) -> bytes:
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [line]
        for name, value in self.headers:
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                value = b", ".join(token for token in tokens if token.lower() not in UPGRADING)
            if value or name != b"connection":
                lines.append(name + b": " + value)
        self.parser, self._upgrading = httptools.HttpRequestParser(self), False
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        # Trailers are no headers (RFC 9110 section 6.5.1): nobody has examined them.
        if self._in_body or name in UPGRADING:
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if method == b"CONNECT":
            raise self._refused(CONNECT_REFUSED)
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        target = read_target(self.url)
        if target is None or version not in ("1.0", "1.1") or len(self._cycles) > self.limits.max_pipelined:
            raise self._refused(MALFORMED)
        if target.authority is not None:
            self.headers[:] = [(name, target.authority if name == b"host" else value) for name, value in self.headers]
        self._fresh, self._begun, self._in_body, self._apart_bytes = False, False, True, 0
        path = target.path.decode("ascii")
        self.scope["method"] = method.decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.scope["raw_path"], self.scope["query_string"] = target.path, target.query
        self._persists = version == "1.1" and self.parser.should_keep_alive()
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self,  # type: ignore[arg-type]  # a cycle calls `write`, `close` and `is_closing` of it only
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=False,  # until the whole request is here
            on_response=self.on_response_complete,
        )
        self._cycles.append(self.cycle)
        if len(self._cycles) == 1:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._apart_bytes -= len(body) * (1 + FRAMING_PER_BYTE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._begun, self._in_body, self._apart_bytes = False, False, 0
        super().on_message_complete()
        if not self.cycle.response_started:
            # An answer that begins before this point ends the connection: what comes next would be its body.
            self.cycle.keep_alive = self._persists and not self.registry.leaving

    # uvicorn declares None, which closes; asyncio keeps the connection half open for True.
    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has sent all it had may still read; whether anybody is left shows when it is written to."""
        if self._lingering or not self._cycles or self._cycles[-1].more_body:
            return False
        if not self._half_closed:
            self._deaf = self._half_closed = True
            self._cycles[-1].keep_alive = False
            self._timer = self.loop.call_later(PROBE_AFTER_S, self._probe_reader, PROBE_AGAIN_S)
        return True

    def _probe_reader(self, next_s: float) -> None:
        """Interim answers, which every client of HTTP/1.1 has to skip: a closed socket answers them with a reset."""
        self._timer = None
        running = self._cycles[0] if self._cycles else None
        if running is None or running.response_started or running.scope["http_version"] == "1.0":
            return
        self.write(CONTINUE)
        self._timer = self.loop.call_later(next_s, self._probe_reader, next_s * 4)

    # ------------------------------------------------------------------------------------------ what goes out

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._written_bytes += len(data)
            self.transport.write(data)

    def is_closing(self) -> bool:
        return self._lingering or self.transport.is_closing()

    def close(self) -> None:
        """Called by a cycle that is over and by one that broke."""
        running = self._cycles[0] if self._cycles else None
        if running is not None and running.response_complete and (running.more_body or self._deaf):
            self._linger()
        else:
            self.transport.close()

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        return self._written_bytes - self.transport.get_write_buffer_size()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._cycles.popleft()
        if not self.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self.pipeline.clear()
        for cycle in self._cycles:
            # uvicorn tells the newest one only; the running one must know too.
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # --------------------------------------------------------------------------------------------- the bounds

    def expire(self) -> bool:
        if self.transport.is_closing() or (self.phase is Phase.BODY and self.flow.read_paused):
            return False
        if self.phase is Phase.HEAD:
            self._give_up(HEADERS_LATE)
        elif self.phase is Phase.BODY:
            self._give_up(BODY_LATE)
        else:
            self.transport.close()
        return True

    def evict(self) -> None:
        if self.unsent_bytes:
            self.transport.abort()
        else:
            self.transport.close()

    def drop(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """The server stops: end with the last answer under way."""
        self.registry.leaving = True
        if self._cycles:
            self._cycles[-1].keep_alive = False
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the parser's words are not for strangers
        self._give_up(MALFORMED)

    def _refused(self, refusal: Refusal) -> RefusedRequestError:
        self._refusal = refusal
        return RefusedRequestError()

    def _give_up(self, refusal: Refusal) -> None:
        """Read no more. Answers under way are finished, but nobody else's place is taken by this refusal."""
        self._deaf = True
        broken = self._cycles.pop() if self._cycles and self._cycles[-1].more_body else None
        if broken is not None:
            broken.disconnected = True
            broken.message_event.set()
            if self.pipeline:
                self.pipeline.popleft()
        if self._cycles:
            self._cycles[-1].keep_alive = False
        elif broken is not None and broken.response_started:
            self.transport.close()
        elif not self.is_closing():
            self._say(refusal)
            self._linger()

    def _find_room(self) -> bool:
        """Once more, because what was at work a moment ago may be waiting by now."""
        self._admitted = self.registry.admit(self)
        if self._admitted and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._admitted

    def _turn_away(self) -> None:
        if not self.transport.is_closing():
            self._say(TOO_MANY_CONNECTIONS)
            self.transport.close()

    def _say(self, refusal: Refusal) -> None:
        number = self.ids.uuid7()
        if self.refusals is not None:
            self.refusals.count(Unrecorded(number, refusal.status, refusal.code, source=self.peer))
        self.write(rendered(refusal, str(number)))

    def _linger(self) -> None:
        """Half close. A full close while bytes of the client are unread would reset the answer on its way."""
        if self.transport.is_closing() or self._half_closed:
            self.transport.close()
            return
        self._deaf = self._lingering = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self._settle()

    def _settle(self) -> None:
        phase = self._present_phase()
        if phase is not self.phase:
            self.phase, self.since_s = phase, self.loop.time()
            self.registry.moved(self)

    def _present_phase(self) -> Phase:
        if self._lingering:
            return Phase.LINGER
        if self._cycles:
            return Phase.BODY if self._cycles[0].more_body else Phase.BUSY
        return Phase.HEAD if self._begun or self._fresh else Phase.IDLE


def _set_user_timeout(transport: asyncio.Transport, seconds: float) -> None:
    """The system drops a peer that acknowledges or takes nothing for so long, also after we have closed."""
    link: Any = transport.get_extra_info("socket")
    if link is not None and link.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(seconds * 1000)))


def guarded(
    limits: ConnectionLimits,
    *,
    ids: IdSource,
    trusted: Callable[[str], bool] = lambda _: False,
    refusals: Refusals | None = None,
) -> type[GuardedProtocol]:
    """A protocol class with these limits: uvicorn takes a class, not an instance. `registry` counts its connections."""
    parts = {"limits": limits, "registry": Connections(limits, trusted), "ids": ids, "refusals": refusals}
    return type("LimitedProtocol", (GuardedProtocol,), parts)
