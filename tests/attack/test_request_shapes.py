"""Hostile framing, straight at the gateway's server and through two proxies that share its connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.attack.request_shapes import HIDDEN, SHAPES
from tests.fakes.raw_http import RawClient
from tests.fakes.reverse_proxies import PROXIES, in_front_of, installed
from tests.fakes.server_thread import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(header_timeout_s=1.0, body_timeout_s=0.5) as thread:
        yield thread


@pytest.fixture(scope="module", params=PROXIES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy before a server of its own."""
    if installed(request.param) is None:
        pytest.skip(f"{request.param} is not installed (Debian: apt-get install nginx-light haproxy)")
    with (
        ServerThread(header_timeout_s=1.0, body_timeout_s=0.5) as server,
        in_front_of(request.param, server.url, tmp_path_factory.mktemp(request.param)) as port,
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "body later"])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_hidden_in_a_body_is_never_a_request(server: ServerThread, name: str, pause: bool) -> None:
    server.script.seen.clear()
    head, mark, body = SHAPES[name].partition(b"\r\n\r\n")
    with RawClient(server.url) as client, contextlib.suppress(ConnectionError):
        client.send(head + mark)
        client.wait(0.05 if pause else 0.0)
        client.send(body, b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        client.read_all()
    paths = [path for _, path, _ in server.script.seen]
    assert "/hidden" not in paths
    if "/last" in paths:
        # Nothing was in doubt: then the first answer is of the first request.
        assert client.replies[0].json()["path"] == "/echo"
    else:
        assert client.ended
        assert len(client.replies) <= 1


@pytest.mark.parametrize("name", SHAPES)
def test_nobody_behind_a_shared_connection_gets_another_ones_answer(shared: str, name: str) -> None:
    with RawClient(shared) as attacker:
        with contextlib.suppress(ConnectionError):
            attacker.send(SHAPES[name])
            attacker.wait(0.1)
        for number in range(4):
            with RawClient(shared) as victim:
                own = b"GET /victim?%d HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % number
                (reply,) = victim.send(own).read_all()
                assert (reply.status, reply.json()["path"], reply.json()["query"]) == (200, "/victim", str(number))


def test_the_corpus_hides_something_everywhere() -> None:
    assert [name for name, data in SHAPES.items() if HIDDEN not in data] == ["chunk, trailers"]
