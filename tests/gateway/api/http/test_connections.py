"""Every state of a connection is bounded, and whoever holds connections locks nobody out."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.api.http.connection_limits import Mark, next_mark, source
from tests.fakes.raw_http import RawClient
from tests.fakes.server_thread import LOOPS, ServerThread

GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
UNREAD = {
    "length": b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",
    "chunked": b"POST /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    "get": b"GET /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",
    "expect": b"POST /early HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n",
}
HURRIED = {"header_timeout_s": 1.0, "body_timeout_s": 0.5}


@pytest.fixture(scope="module", params=LOOPS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with ServerThread(request.param) as thread:
        yield thread


@pytest.fixture(scope="module", params=LOOPS)
def hurried(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with ServerThread(request.param, **HURRIED) as thread:
        yield thread


@pytest.fixture(scope="module", params=LOOPS)
def impatient(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with ServerThread(request.param, write_timeout_s=0.5) as thread:
        yield thread


def eventually(condition: Callable[[], Any], hang_s: float = 40.0) -> None:
    deadline = time.monotonic() + hang_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


# ------------------------------------------------------------------------------------ bodies that nobody has read


@pytest.mark.parametrize("kind", UNREAD)
def test_an_answer_before_the_body_ends_the_connection(server: ServerThread, kind: str) -> None:
    with RawClient(server.url) as client:
        (reply,) = client.send(UNREAD[kind]).read_all()
    assert (reply.status, reply.headers["connection"]) == (200, "close")


@pytest.mark.parametrize("kind", UNREAD)
def test_what_comes_after_such_an_answer_is_never_read_as_a_request(server: ServerThread, kind: str) -> None:
    with RawClient(server.url) as client:
        client.send(UNREAD[kind]).read(1)
        client.send(b"x", GET)
        assert len(client.read_all()) == 1


def test_a_client_that_goes_on_sending_still_reads_its_answer(server: ServerThread) -> None:
    with RawClient(server.url) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n")
        for _ in range(30):
            client.send(b"x" * 100_000)
        (reply,) = client.half_close().read_all()
    assert reply.whole


def test_after_a_body_that_was_whole_the_connection_lives_on(server: ServerThread) -> None:
    with RawClient(server.url) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").read(1)
        assert "connection" not in client.replies[0].headers
        assert len(client.send(GET).read(2)) == 2


# ------------------------------------------------------------------------------------------- every state has a timer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 408),
        (b"GET /echo HT", 408),
        (b"GET /echo HTTP/1.1\r\nhost: x\r\n", 408),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n", 408),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc", 408),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", 408),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-t", 408),
    ],
)
def test_who_stops_half_way_is_told_and_the_connection_closed(hurried: ServerThread, sent: bytes, status: int) -> None:
    with RawClient(hurried.url) as client:
        (reply,) = client.send(sent).read_all()
    assert (reply.status, reply.json()["error"]["code"]) == (status, "request_timeout")
    assert {"message", "hint", "request_id"} <= reply.json()["error"].keys()


def test_dripping_buys_no_time(hurried: ServerThread) -> None:
    with RawClient(hurried.url) as client:
        client.send(b"GET /echo HTTP/1.1\r\n")
        number = 0
        while not client.replies:
            client.send(b"x-%d: y\r\n" % number)
            client.wait(0.02)
            number += 1
        assert number < 1000
    assert client.replies[0].status == 408


def test_a_timer_of_the_next_request_never_speaks_into_the_answer_before_it(hurried: ServerThread) -> None:
    hurried.script.release.clear()
    with RawClient(hurried.url) as client:
        client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\nGET /echo HT")
        time.sleep(1.5)
        hurried.script.release.set()
        first, second = client.read_all()
    assert (first.status, first.json()["path"]) == (200, "/wait")
    assert second.status == 408


def test_a_bad_request_never_speaks_into_the_answer_before_it(server: ServerThread) -> None:
    server.script.release.clear()
    with RawClient(server.url) as client:
        client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n\x00\x01\x02\r\n\r\n")
        eventually(lambda: server.script.running)
        server.script.release.set()
        (reply,) = client.read_all()
    assert (reply.status, reply.json()["path"]) == (200, "/wait")


# -------------------------------------------------------------------------------------------- readers that do not read


def test_whole_answers_that_nobody_reads_are_given_up(impatient: ServerThread) -> None:
    impatient.script.big_bytes = 8 << 20
    before, seen = impatient.state()["unread_answers"], sum(path == "/big" for _, path, _ in impatient.script.seen)
    with ExitStack() as held:
        clients = [held.enter_context(RawClient(impatient.url, receive_buffer=2048)) for _ in range(10)]
        for client in clients:
            client.send(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: sum(path == "/big" for _, path, _ in impatient.script.seen) - seen == 10)
        eventually(lambda: impatient.state()["open"] == 0)
        # What the system's own buffers have taken whole is not seen as unread; such a connection ends by another timer.
        assert 1 <= impatient.state()["unread_answers"] - before <= 10
        assert impatient.state()["unsent_bytes"] == 0
        # The server's side is gone by now. Of a closed window the kernel may lose the reset: no end is waited for.
        for client in clients:
            taken = -1
            while not client.ended and taken != len(client.received):
                taken = len(client.received)
                client.wait(0.1)
        assert not any(reply.whole for client in clients for reply in client.replies)


def test_a_stream_that_nobody_reads_is_ended_and_its_connection_closed(impatient: ServerThread) -> None:
    with RawClient(impatient.url, receive_buffer=2048) as client:
        client.send(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: "/stream" in impatient.script.gone)
        eventually(lambda: impatient.state()["open"] == 0)
    impatient.script.gone.clear()


def test_unsent_answers_are_bounded_together() -> None:
    with ServerThread(max_unsent_bytes=20 << 20) as server, ExitStack() as held:
        server.script.big_bytes = 8 << 20
        clients = [held.enter_context(RawClient(server.url, receive_buffer=2048)) for _ in range(12)]
        for client in clients:
            client.send(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: server.state()["unread_answers"] >= 8)
        assert server.state()["unsent_bytes"] <= 20 << 20


def test_stopping_waits_for_no_reader_that_does_not_read() -> None:
    """The server's grace is 30 s; a hang guard of 60 s stands in `ServerThread.stop`."""
    server = ServerThread()
    with server, ExitStack() as held:
        server.script.big_bytes = 8 << 20
        for _ in range(5):
            client = held.enter_context(RawClient(server.url, receive_buffer=2048))
            client.send(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: len(server.script.seen) == 5)
        server.stop()
        assert server.state()["unread_answers"] == 5


def test_who_takes_what_waits_is_never_too_slow() -> None:
    def judge(unsent: int, sent: int, at: float) -> tuple[Mark | None, bool]:
        return next_mark(
            Mark(0.0, 1000), unsent_bytes=unsent, sent_bytes=sent, now_s=at, window_s=30.0, min_bytes_s=1024
        )

    assert judge(0, 1000, 99.0) == (None, False)
    assert judge(5, 1000, 29.9) == (Mark(0.0, 1000), False)
    assert judge(5, 1000 + 30, 30.0) == (Mark(0.0, 1000), True)
    assert judge(5, 1000 + 30 * 1024, 30.0) == (Mark(30.0, 1000 + 30 * 1024), False)


# ------------------------------------------------------------------------------------------------- held connections


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", GET, UNREAD["length"], b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\na"]
)
def test_held_connections_lock_nobody_out(sent: bytes) -> None:
    with ServerThread(max_connections=50, max_connections_per_address=50) as server, ExitStack() as held:
        for _ in range(200):
            held.enter_context(RawClient(server.url)).send(sent)
        eventually(lambda: served(server))
        assert sum(served(server) for _ in range(20)) == 20
        assert server.state()["open"] <= 50
        assert server.state()["evicted"] > 0


def served(server: ServerThread) -> bool:
    with RawClient(server.url) as client:
        return client.send(GET).read(1)[0].status == 200


def test_the_connection_that_waited_longest_goes_first() -> None:
    with ServerThread(max_connections=2) as server, ExitStack() as held:
        first, second = (held.enter_context(RawClient(server.url)) for _ in range(2))
        first.send(GET).read(1)
        second.send(GET).read(1)
        first.send(GET).read(2)
        eventually(lambda: served(server))
        assert len(second.read_all()) == 1
        assert len(first.send(GET).read(3)) == 3


def test_a_crowd_does_not_drive_itself_out() -> None:
    """A connection whose request is on its way keeps its place, and the last to come are told to come back."""
    with ServerThread(max_connections=20) as server, ExitStack() as held:
        clients = [held.enter_context(RawClient(server.url)) for _ in range(60)]
        answers = [client.send(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")) for client in clients]
        assert {client.read(1)[0].status for client in answers} <= {200, 503}


def test_requests_under_way_are_never_cut_off_for_others() -> None:
    with ServerThread(max_connections=2) as server, ExitStack() as held:
        working = [held.enter_context(RawClient(server.url)) for _ in range(2)]
        for client in working:
            client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: server.script.running == 2)
        (refusal,) = held.enter_context(RawClient(server.url)).read_all()
        assert (refusal.status, refusal.headers["retry-after"]) == (503, "1")
        assert refusal.json()["error"]["code"] == "overloaded"
        server.script.release.set()
        assert [client.read(1)[0].status for client in working] == [200, 200]


def test_one_address_gets_its_share_and_no_more() -> None:
    with ServerThread(max_connections=50, max_connections_per_address=2) as server, ExitStack() as held:
        for _ in range(2):
            held.enter_context(RawClient(server.url)).send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        eventually(lambda: server.script.running == 2)
        assert held.enter_context(RawClient(server.url)).read_all()[0].status == 503


def test_a_trusted_proxy_stands_for_many_callers() -> None:
    with (
        ServerThread(max_connections_per_address=2, trusted_proxies=("127.0.0.0/8",)) as server,
        ExitStack() as held,
    ):
        clients = [held.enter_context(RawClient(server.url)) for _ in range(10)]
        assert {client.send(GET).read(1)[0].status for client in clients} == {200}
        assert server.state()["evicted"] == 0


def test_an_ipv6_host_counts_as_one_whatever_address_of_its_network_it_takes() -> None:
    assert source("2001:db8:1:2:3::4") == source("2001:db8:1:2::9") != source("2001:db8:1:3::4")
    assert source("::ffff:192.0.2.1") == source("192.0.2.1") != source("192.0.2.2")


def test_four_thousand_silent_connections_leave_room() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10_000:
        pytest.skip(f"needs 10,000 descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 10_000), hard))
    try:
        with ServerThread(max_connections_per_address=4096) as server, ExitStack() as held:
            for _ in range(4200):
                held.enter_context(RawClient(server.url)).send(UNREAD["length"], b"x")
            eventually(lambda: served(server))
            assert server.state()["open"] <= 4096
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --------------------------------------------------------------------------------------- pipelines, hang-ups, halves


def test_a_reset_reaches_every_request_of_a_pipeline(server: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    server.script.gone.clear()
    client = RawClient(server.url).send(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n" * 5)
    eventually(lambda: server.script.running)
    client.link.recv(1000)
    client.reset()
    eventually(lambda: server.script.gone == ["/stream"])
    eventually(lambda: server.script.running == 0)
    assert server.errors == []
    assert not [record for record in caplog.records if record.exc_info]


def test_a_pipeline_is_answered_in_order_up_to_its_bound(server: ServerThread) -> None:
    many = b"".join(b"GET /echo?%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(100))
    with RawClient(server.url) as client:
        replies = client.send(many).read_all()
    assert [reply.json()["query"] for reply in replies] == [str(number) for number in range(17)]
    assert replies[-1].headers["connection"] == "close"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_has_closed_its_sending_side_gets_its_answer(server: ServerThread, version: bytes) -> None:
    server.script.release.clear()
    with RawClient(server.url) as client:
        client.send(b"GET /wait HTTP/%b\r\nhost: x\r\n\r\n" % version).half_close()
        eventually(lambda: server.script.running)
        if version == b"1.1":
            while client.interim < 2:  # is somebody still reading?
                client.wait(20)
        server.script.release.set()
        (reply,) = client.read_all()
    assert (reply.status, reply.json()["path"]) == (200, "/wait")
    assert (client.interim > 0) == (version == b"1.1")


def test_a_half_closed_client_gets_every_answer_of_its_pipeline(server: ServerThread) -> None:
    with RawClient(server.url) as client:
        assert len(client.send(GET * 3).half_close().read_all()) == 3


def test_a_client_that_has_closed_is_still_noticed(server: ServerThread) -> None:
    server.script.release.clear()
    server.script.gone.clear()
    client = RawClient(server.url).send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    eventually(lambda: server.script.running)
    client.link.close()
    eventually(lambda: server.script.gone == ["/wait"])
    server.script.release.set()


def test_an_end_in_the_middle_of_a_body_is_a_hang_up(server: ServerThread) -> None:
    server.script.gone.clear()
    with RawClient(server.url) as client:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc").half_close()
        assert client.read_all() == []
    eventually(lambda: server.script.gone == ["/echo"])
