"""The pipelined connection: real replies from a real server, odd bytes from a hand-written one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from gateway.storage.valkey import ValkeyError, ValkeyLink, encode, parse_address
from tests.fakes.hang_guard import hang_guard


@pytest.fixture
async def link(valkey_url: str) -> AsyncIterator[ValkeyLink]:
    opened = ValkeyLink(valkey_url)
    await opened.connect()
    await opened.call("FLUSHALL")
    yield opened
    await opened.close()


@asynccontextmanager
async def serving(answer: bytes, *, silent: bool = False, pieces: int = 0) -> AsyncIterator[str]:
    """A server that says `answer` to whatever it is told, or nothing while the test runs; gives its URL."""
    size, over = pieces or len(answer), asyncio.Event()
    talks: list[asyncio.Task[None]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            await reader.read(100)
            if silent:
                await over.wait()
            for start in range(0, len(answer), size):
                writer.write(answer[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)
            await reader.read(100)
        writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    over.set()
    server.close()
    await asyncio.gather(*talks)
    await server.wait_closed()


async def test_every_reply_type_is_read(link: ValkeyLink) -> None:
    assert await link.call("SET", "k", b"a\r\nb") == b"OK"
    assert await link.call("GET", "k") == b"a\r\nb"
    assert await link.call("GET", "none") is None
    assert await link.call("INCRBY", "n", -5) == -5
    assert await link.call("MGET", "k", "none") == [b"a\r\nb", None]
    assert await link.call("EVAL", "return {1, {'x', {}}}", 0) == [1, [b"x", []]]


async def test_a_servers_refusal_is_an_error_with_its_word(link: ValkeyLink) -> None:
    await link.call("SET", "k", "text")
    with pytest.raises(ValkeyError) as caught:
        await link.call("LPUSH", "k", "x")
    assert caught.value.code == "WRONGTYPE"
    assert await link.call("PING") == b"PONG"


async def test_many_tasks_share_the_connection_and_get_their_own_answers(link: ValkeyLink) -> None:
    answers = await asyncio.gather(*[link.call("ECHO", f"{number}" * 50) for number in range(500)])
    assert answers == [(f"{number}" * 50).encode() for number in range(500)]


async def test_a_large_reply_arrives_whole(link: ValkeyLink) -> None:
    await link.call("SET", "big", b"x" * 3_000_000)
    assert await link.call("GET", "big", timeout_s=5) == b"x" * 3_000_000


async def test_a_cancelled_call_does_not_shift_the_answers_of_others(link: ValkeyLink) -> None:
    cancelled = asyncio.ensure_future(link.call("ECHO", "one"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await link.call("ECHO", "two") == b"two"


async def test_a_reply_in_single_bytes_is_put_together() -> None:
    async with serving(b"*2\r\n$3\r\nabc\r\n:12\r\n", pieces=1) as url:
        link = ValkeyLink(url)
        await link.connect()
        assert await link.call("X") == [b"abc", 12]
        await link.close()


async def test_a_late_answer_is_a_timeout_in_time() -> None:
    async with serving(b"+OK\r\n", silent=True) as url:
        link = ValkeyLink(url)
        await link.connect()
        async with hang_guard():
            with pytest.raises(ValkeyError) as caught:
                await link.call("X", timeout_s=0.03)
        assert caught.value.code == "TIMEOUT"
        await link.close()


async def test_nonsense_ends_the_connection_and_tells_the_owner() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n") as url:
        lost: list[bool] = []
        link = ValkeyLink(url, on_lost=lambda: lost.append(True))
        await link.connect()
        with pytest.raises(ValkeyError) as caught:
            await link.call("X")
        assert caught.value.code == "PROTOCOL"
        assert lost == [True]
        assert not link.connected


async def test_a_wrong_password_is_refused_without_showing_it(valkey_url: str) -> None:
    port = parse_address(valkey_url).port
    link = ValkeyLink(f"redis://:guessed-secret@127.0.0.1:{port}")
    with pytest.raises(ValkeyError) as caught:
        await link.connect()
    assert caught.value.code == "WRONGPASS"
    assert "guessed-secret" not in str(caught.value) + repr(link.address)


async def test_nobody_listening_is_a_disconnect() -> None:
    with pytest.raises(ValkeyError) as caught:
        await ValkeyLink("redis://127.0.0.1:1").connect()
    assert caught.value.code == "DISCONNECTED"


async def test_sending_without_a_connection_fails_at_once() -> None:
    with pytest.raises(ValkeyError, match="no connection"):
        ValkeyLink("redis://127.0.0.1:1").send(encode("PING"), 1.0)


def test_a_busy_loop_is_not_mistaken_for_a_slow_store(valkey_url: str) -> None:
    async def stall() -> object:
        link = ValkeyLink(valkey_url)
        await link.connect()
        answer = asyncio.ensure_future(link.call("PING", timeout_s=0.03))
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251 - this process is late: the command has not even left
        try:
            return await answer
        finally:
            await link.close()

    assert uvloop.run(stall()) == b"PONG"
    assert asyncio.run(stall()) == b"PONG"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/2", ("h", 1, 2, None, None, False)),
        ("valkeys://ana:p%40ss@h", ("h", 6379, 0, "ana", "p@ss", True)),
        ("unix:///run/v.sock?db=3", ("", 0, 3, None, None, False)),
    ],
)
def test_addresses_are_read_from_urls(url: str, expected: tuple[object, ...]) -> None:
    found = parse_address(url)
    assert (found.host, found.port, found.database, found.username, found.password, found.tls) == expected


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="redis://"):
        parse_address("http://h")
