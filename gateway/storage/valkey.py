"""One pipelined connection to Valkey (or Redis), shared by all requests of the process.

Why not `redis.asyncio` on the hot path: it lends one connection per call and parses line by line, 86-127 us of CPU per
script call against 15-22 us here (same machine, same script, 30 arguments). A request makes two such calls, so the
difference is a quarter of the gateway's whole time per request at its target speed. The protocol needed is small
(RESP2: five types), so this file holds all of it. Knows nothing of limits, keys or scripts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import parse_qs, unquote, urlsplit

Reply: TypeAlias = "bytes | int | list[Reply] | None"

TICK_S = 0.005
STALL_S = 0.002


class ValkeyError(Exception):
    """The server refused a command, or cannot be reached. `code` is the server's word or one of ours.

    Ours: `TIMEOUT`, `DISCONNECTED`, `PROTOCOL`. A timeout does not say whether the command took effect.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. `repr` never shows the password."""

    host: str
    port: int
    path: str | None
    database: int
    username: str | None
    password: str | None
    tls: bool

    def __repr__(self) -> str:
        return f"Address({self.path or f'{self.host}:{self.port}'}, db={self.database}, tls={self.tls})"


def parse_address(url: str) -> Address:
    """Read `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` or `unix://` URLs. Raises `ValueError`.

    The only parameter is `db`: one that is not understood may ask for protection that would silently be missing.
    """
    parts = urlsplit(url)
    unknown = sorted(set(parse_qs(parts.query)) - {"db"})
    if unknown:
        raise ValueError(
            f"the store's URL has the parameter `{unknown[0][:64]}`, which is not supported; certificates are set in "
            "`store.redis_ca_file`, `store.redis_cert_file` and `store.redis_key_file`"
        )
    if parts.scheme not in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        raise ValueError("the store's URL must start with redis://, rediss://, valkey://, valkeys:// or unix://")
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if parts.scheme == "unix":
        database = parse_qs(parts.query).get("db", ["0"])[0]
        return Address("", 0, unquote(parts.path), int(database), username, password, tls=False)
    database = parts.path.strip("/") or parse_qs(parts.query).get("db", ["0"])[0]
    tls = parts.scheme in {"rediss", "valkeys"}
    return Address(parts.hostname or "127.0.0.1", parts.port or 6379, None, int(database), username, password, tls)


def tls_context(ca_file: Path | None, cert_file: Path | None = None, key_file: Path | None = None) -> ssl.SSLContext:
    """For `rediss://`: verified against `ca_file` or the system's authorities; with our own certificate, if any.

    Raises `OSError` (of which `ssl.SSLError` is one) for files that cannot be used.
    """
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    if cert_file is not None:
        context.load_cert_chain(str(cert_file), None if key_file is None else str(key_file))
    return context


def encode(*parts: str | bytes | int) -> bytes:
    """Bulk strings of a command, without the array header, so that callers can keep pieces ready."""
    out = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(out)


class ValkeyLink:
    """A connection that any number of tasks use at once; answers come back in order.

    It never reconnects by itself: the owner decides when to try `connect` again and learns of a loss by `on_lost`.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 1.0,
        on_lost: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.on_lost = on_lost
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._wire: _Wire | None = None

    @property
    def connected(self) -> bool:
        return self._wire is not None and not self._wire.lost

    async def connect(self) -> None:
        """Open the connection, log in and choose the database. Raises `ValkeyError`."""
        await self.close()
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if address.path is not None:
                    _, wire = await loop.create_unix_connection(lambda: _Wire(loop, self._lost), address.path)
                else:
                    context = (self._tls or ssl.create_default_context()) if address.tls else None
                    _, wire = await loop.create_connection(
                        lambda: _Wire(loop, self._lost), address.host, address.port, ssl=context
                    )
        except ssl.SSLError as error:
            raise ValkeyError("DISCONNECTED", f"no TLS with the store: {error.reason or error}") from error
        except (OSError, TimeoutError) as error:
            raise ValkeyError("DISCONNECTED", "the store does not answer") from error
        self._wire = wire
        try:
            if address.password is not None:
                user = [address.username] if address.username else []
                await self.call("AUTH", *user, address.password, timeout_s=self._connect_timeout_s)
            if address.database:
                await self.call("SELECT", address.database, timeout_s=self._connect_timeout_s)
        except ValkeyError:
            await self.close()
            raise

    async def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
            await wire.gone

    def send(self, command: bytes, timeout_s: float) -> asyncio.Future[Reply]:
        """Queue an encoded command. The future fails with `ValkeyError`; cancelling it does not recall the command."""
        wire = self._wire
        if wire is None or wire.lost:
            raise ValkeyError("DISCONNECTED", "there is no connection to the store")
        return wire.send(command, timeout_s)

    async def call(self, *parts: str | bytes | int, timeout_s: float = 1.0) -> Reply:
        return await self.send(b"*%d\r\n%b" % (len(parts), encode(*parts)), timeout_s)

    def _lost(self, wire: _Wire) -> None:
        if wire is self._wire:
            self._wire = None
            if self.on_lost is not None:
                self.on_lost()


class _Wire(asyncio.Protocol):
    """The bytes of one connection: writes coalesced per loop turn, replies matched first in, first out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[_Wire], None]) -> None:
        self.lost = False
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the transport has let go of its socket."""
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._late_s = 0.0
        """Time that the loop spent on other things: it is not the store's, so no deadline counts it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, command: bytes, timeout_s: float) -> asyncio.Future[Reply]:
        loop = self._loop
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append((future, loop.time() - self._late_s + timeout_s))
        if not self._out:
            loop.call_soon(self._flush)
        self._out.append(command)
        if self._timer is None:
            self._arm()
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.lost:
            self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        position, waiting = 0, self._waiting
        try:
            while (parsed := _parse(data, position)) is not None:
                reply, position = parsed
                future, _ = waiting.popleft()
                if future.done():
                    continue
                if isinstance(reply, ValkeyError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        except (ValueError, IndexError):
            self._fail("PROTOCOL", "the store answered something that is not RESP")
            self.abort()
        self._buffer = data[position:] if position else data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._end()
        if not self.gone.done():
            self.gone.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail("DISCONNECTED", "the connection to the store was lost")
        self._on_lost(self)

    def _fail(self, code: str, message: str) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(ValkeyError(code, message))

    def _arm(self) -> None:
        self._tick_due = self._loop.time() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """One timer for all waiters: cheaper than one each, and it can tell a slow store from a slow loop."""
        now = self._loop.time()
        if now - self._tick_due > STALL_S:
            self._late_s += now - self._tick_due
        counted, pending = now - self._late_s, False
        for future, deadline in self._waiting:
            if future.done():
                continue
            if deadline <= counted:
                future.set_exception(ValkeyError("TIMEOUT", "the store did not answer in time"))
            else:
                pending = True
        if pending:
            self._arm()
        else:
            self._timer = None


def _parse(data: bytes, position: int) -> tuple[Reply | ValkeyError, int] | None:
    """One reply and where the next begins; None when more bytes are needed. Raises `ValueError` on nonsense."""
    end = data.find(b"\r\n", position)
    if end < 0:
        return None
    kind, head, after = data[position], data[position + 1 : end], end + 2
    if kind == 0x24:  # $
        size = int(head)
        if size < 0:
            return None, after
        stop = after + size
        return (data[after:stop], stop + 2) if len(data) >= stop + 2 else None
    if kind == 0x3A:  # :
        return int(head), after
    if kind == 0x2B:  # +
        return head, after
    if kind == 0x2D:  # -
        word, _, rest = head.decode("utf-8", "replace").partition(" ")
        return ValkeyError(word, rest), after
    if kind != 0x2A:  # *
        raise ValueError("unknown reply type")
    count = int(head)
    if count < 0:
        return None, after
    items: list[Reply] = []
    for _ in range(count):
        parsed = _parse(data, after)
        if parsed is None:
            return None
        item, after = parsed
        if isinstance(item, ValkeyError):
            raise ValueError("an error inside an array")
        items.append(item)
    return items, after
