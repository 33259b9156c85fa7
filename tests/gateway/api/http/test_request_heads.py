"""What is taken for the head of a request: target, version, headers; and how much may stand around a body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.api.http.request_target import Target, read_target
from tests.fakes.raw_http import RawClient, Reply
from tests.fakes.server_thread import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(max_header_bytes=64 * 1024) as thread:
        yield thread


def ask(server: ServerThread, *parts: bytes) -> Reply:
    with RawClient(server.url) as client:
        (reply,) = client.send(*parts).half_close().read_all()
    return reply


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        (b"/", Target(b"/")),
        (b"/a/b?c=d?e", Target(b"/a/b", b"c=d?e")),
        (b"//x/y", Target(b"//x/y")),
        (b"/a%23b", Target(b"/a%23b")),
        (b"*", Target(b"*")),
        (b"http://x/a?b", Target(b"/a", b"b", b"x")),
        (b"HTTP://x:8080", Target(b"/", b"", b"x:8080")),
        (b"https://[::1]:80/?q", Target(b"/", b"q", b"[::1]:80")),
        (b"http://x?q", Target(b"/", b"q", b"x")),
        (b"/a#b", None),
        (b"http://x/health#/admin/v1", None),
        (b"http://x#y", None),
        (b"http://user@x/a", None),
        (b"http://user@x@y/a", None),
        (b"http:///a", None),
        (b"http:/a", None),
        (b"ftp://x/a", None),
        (b"x:443", None),
        (b"a", None),
        (b"", None),
        ("/ñ".encode(), None),
    ],
)
def test_a_target_is_read_as_rfc_9112_says(raw: bytes, target: Target | None) -> None:
    assert read_target(raw) == target


@pytest.mark.parametrize(
    "target", [b"/echo#/admin/v1", b"http://x/echo#/admin/v1", b"http://u@x/echo", b"ftp://x/echo"]
)
def test_a_target_that_hides_something_is_refused(server: ServerThread, target: bytes) -> None:
    reply = ask(server, b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
    assert (reply.status, reply.headers["connection"]) == (400, "close")
    assert reply.json()["error"]["code"] == "malformed_request"


def test_the_authority_of_an_absolute_target_stands_in_for_the_host(server: ServerThread) -> None:
    seen = ask(server, b"GET http://inside.example/echo?a HTTP/1.1\r\nhost: outside.example\r\n\r\n").json()
    assert (seen["path"], seen["query"], seen["headers"]) == ("/echo", "a", [["host", "inside.example"]])


def test_two_hosts_stay_two_whatever_the_target_says(server: ServerThread) -> None:
    seen = ask(server, b"GET http://a/echo HTTP/1.1\r\nhost: b\r\nhost: c\r\n\r\n").json()
    assert [name for name, _ in seen["headers"]] == ["host", "host"]


@pytest.mark.parametrize("version", [b"0.9", b"2.0", b"1.2"])
def test_other_versions_are_refused(server: ServerThread, version: bytes) -> None:
    assert ask(server, b"GET /echo HTTP/%b\r\nhost: x\r\n\r\n" % version).status == 400


def test_trailers_are_no_headers(server: ServerThread) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    seen = ask(server, head + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\nhost: y\r\n\r\n").json()
    assert seen["body"] == "a"
    assert [name for name, _ in seen["headers"]] == ["host", "transfer-encoding"]


@pytest.mark.parametrize(
    "around",
    [
        b"1;" + b"x" * 200_000 + b"\r\n",
        b"1\r\na\r\n0\r\nx-t: " + b"y" * 200_000,
        b"1\r\na\r\n0\r\n" + b"x-t: y\r\n" * 30_000,
    ],
    ids=["extension", "one trailer", "many trailers"],
)
def test_what_stands_around_a_body_is_bounded(server: ServerThread, around: bytes) -> None:
    with RawClient(server.url) as client:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        (reply,) = client.send(around).read_all()
    assert reply.status == 431


def test_small_chunks_are_no_abuse(server: ServerThread) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    reply = ask(server, head, b"1\r\na\r\n" * 100_000, b"0\r\n\r\n")
    assert reply.json()["body"] == "a" * 100_000


def test_blank_lines_between_requests_are_bounded(server: ServerThread) -> None:
    assert ask(server, b"\r\n" * 100 + b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n").status == 200
    with RawClient(server.url) as client:
        (reply,) = client.send(b"\r\n" * 200_000).read_all()
    assert reply.status == 431
