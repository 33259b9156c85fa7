"""The small HTTP client against a real socket: reuse, pooling, time limits, and ends that are not ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from gateway.backends.http_wire import HttpPool, Reply, WireError
from gateway.errors import ConfigError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ASK = b"POST /v1/x HTTP/1.1\r\nhost: up\r\ncontent-length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """A socket that answers as `script` says; counts its connections."""

    def __init__(self) -> None:
        self.script: Handler = self.say(OK)
        self.connections = 0
        self.port = 0

    def say(self, *answers: bytes, close: bool = False) -> Handler:
        """One of the answers per request, the last for all later ones."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = 0
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                writer.write(answers[min(number, len(answers) - 1)])
                await writer.drain()
                number += 1
                if close:
                    writer.close()
                    return

        return handle

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    yield peer
    server.close()


def pool_for(peer: Peer, *, read_timeout_s: float = 2.0, max_connections: int = 8) -> HttpPool:
    return HttpPool(
        f"http://127.0.0.1:{peer.port}/v1",
        connect_timeout_s=1.0,
        read_timeout_s=read_timeout_s,
        max_connections=max_connections,
    )


async def failure(reply: Reply) -> WireError:
    with pytest.raises(WireError) as caught:
        await reply.read()
    return caught.value


async def test_a_connection_is_used_again(peer: Peer) -> None:
    pool = pool_for(peer)
    for _ in range(5):
        reply = pool.send(ASK)
        assert await reply.head() == 200
        assert await reply.read() == b"ok"
    assert peer.connections == 1
    await pool.aclose()


async def test_parallel_requests_get_a_connection_each_up_to_the_limit(peer: Peer) -> None:
    pool = pool_for(peer, max_connections=3)
    replies = [pool.send(ASK) for _ in range(10)]
    assert [await reply.read() for reply in replies] == [b"ok"] * 10
    assert peer.connections == 3
    await pool.aclose()


async def test_a_chunked_body_is_joined(peer: Peer) -> None:
    peer.script = peer.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    pool = pool_for(peer)
    assert await pool.send(ASK).read() == b"abcde"
    assert await pool.send(ASK).read() == b"abcde"
    assert peer.connections == 1
    await pool.aclose()


async def test_an_answer_without_length_ends_with_the_connection(peer: Peer) -> None:
    peer.script = peer.say(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)
    pool = pool_for(peer)
    assert await pool.send(ASK).read() == b"all of it"
    await pool.aclose()


async def test_a_body_that_breaks_off_is_an_error(peer: Peer) -> None:
    peer.script = peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart", close=True)
    pool = pool_for(peer)
    reply = pool.send(ASK)
    assert await reply.head() == 200
    assert await reply.chunk() == b"part"
    with pytest.raises(WireError) as caught:
        await reply.chunk()
    assert not caught.value.clean
    await pool.aclose()


async def test_a_chunked_body_that_breaks_off_is_an_error(peer: Peer) -> None:
    peer.script = peer.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", close=True)
    pool = pool_for(peer)
    assert not (await failure(pool.send(ASK))).clean
    await pool.aclose()


async def test_silence_after_a_request_times_out_clean(peer: Peer) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    peer.script = silent
    pool = pool_for(peer, read_timeout_s=0.1)
    error = await failure(pool.send(ASK))
    assert error.timeout
    assert error.clean
    await pool.aclose()


async def test_a_stream_that_goes_on_slowly_does_not_time_out(peer: Peer) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0.06)
            writer.write(b"x")
        await reader.read()

    peer.script = drip
    pool = pool_for(peer, read_timeout_s=0.15)
    assert await pool.send(ASK).read() == b"xxxxx"
    await pool.aclose()


async def test_nobody_listening_is_a_clean_error() -> None:
    pool = HttpPool("http://127.0.0.1:1/v1", connect_timeout_s=1.0, read_timeout_s=1.0, max_connections=2)
    replies = [pool.send(ASK) for _ in range(5)]
    assert all([(await failure(reply)).clean for reply in replies])
    await pool.aclose()


async def test_something_that_is_not_http_is_an_error(peer: Peer) -> None:
    peer.script = peer.say(b"SSH-2.0-OpenSSH\r\n\r\n")
    pool = pool_for(peer)
    await failure(pool.send(ASK))
    await pool.aclose()


async def test_bytes_nobody_asked_for_close_the_connection(peer: Peer) -> None:
    peer.script = peer.say(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
    pool = pool_for(peer)
    assert await pool.send(ASK).read() == b"ok"
    await asyncio.sleep(0.05)
    peer.script = peer.say(OK)
    assert await pool.send(ASK).read() == b"ok"
    assert peer.connections == 2
    await pool.aclose()


async def test_a_second_answer_is_never_given_to_a_waiting_request(peer: Peer) -> None:
    peer.script = peer.say(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged", OK)
    pool = pool_for(peer, max_connections=1)
    first, second = pool.send(ASK), pool.send(ASK)
    assert await first.read() == b"ok"
    peer.script = peer.say(OK)
    assert await second.read() == b"ok"
    await pool.aclose()


async def test_closing_a_running_answer_closes_its_connection_and_frees_the_place(peer: Peer) -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()
        ended.set()

    peer.script = endless
    pool = pool_for(peer, max_connections=1)
    reply = pool.send(ASK)
    assert await reply.chunk() == b"x"
    waiting = pool.send(ASK)
    reply.close()
    await asyncio.wait_for(ended.wait(), 1)
    assert await waiting.chunk() == b"x"
    waiting.close()
    await pool.aclose()


async def test_an_answer_that_is_left_lets_its_connection_live(peer: Peer) -> None:
    body = b"x" * 300_000
    peer.script = peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body, OK)
    pool = pool_for(peer, max_connections=1)
    reply = pool.send(ASK)
    await reply.chunk()
    reply.leave()
    assert await pool.send(ASK).read() == b"ok"
    assert peer.connections == 1
    await pool.aclose()


async def test_a_reader_that_is_behind_holds_the_sender_back(peer: Peer) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        block = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(400):
            writer.write(block)
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await reader.read()

    peer.script = flood
    pool = pool_for(peer)
    reply = pool.send(ASK)
    await reply.head()
    await asyncio.sleep(0.2)
    assert sent < 400
    assert len(await reply.read()) == 400 * 0x10000
    await pool.aclose()


@pytest.mark.parametrize("url", ["ftp://x/v1", "http:///v1", "x", "http://user:pw@x/v1", "http://x/v1?key=1"])
async def test_an_address_that_cannot_be_an_upstream_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpPool(url, connect_timeout_s=1, read_timeout_s=1, max_connections=1)
