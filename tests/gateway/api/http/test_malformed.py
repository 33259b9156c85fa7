"""Raw sockets against the real server: framing (T29), header bombs and slowness (T28), Host and paths (T15, T2)."""

from __future__ import annotations

import io
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.settings import LogSettings
from gateway.telemetry.logs import configure_logs
from tests.fakes.stage import Stage

BODY = b'{"model":"mini","messages":[{"role":"user","content":"Hola"}]}'


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    return {"http": {"port": 0, "metrics_port": None, "header_timeout_s": 0.5, "body_timeout_s": 0.5}}


def speak(stage: Stage, *parts: bytes, wait_s: float = 30.0, pause_s: float = 0.0) -> tuple[int, bytes]:
    """Send the parts; returns the status of the first answer (0: closed without one) and all bytes until the end."""
    host, port = stage.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait_s) as link:
        received = b""
        try:
            for part in parts:
                link.sendall(part)
                time.sleep(pause_s)
            while block := link.recv(65536):
                received += block
        except (ConnectionError, TimeoutError):
            pass
    return (int(received.split(b" ")[1]) if received.startswith(b"HTTP/1.1 ") else 0), received


def request(*headers: bytes, body: bytes = BODY, path: bytes = b"/v1/chat/completions", token: str = "") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", *headers]
    if token:
        lines.append(b"authorization: Bearer " + token.encode())
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


HOST = b"host: gateway.example"
LENGTH = b"content-length: %d" % len(BODY)
CLOSE = b"connection: close"


def test_the_plain_request_is_served(stage: Stage) -> None:
    status, _ = speak(stage, request(HOST, LENGTH, CLOSE, token=stage.token()))
    assert status == 200


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((LENGTH, b"transfer-encoding: chunked"), b"0\r\n\r\n"),
        ((b"content-length: 4", b"content-length: 5"), b"abcde"),
        ((b"content-length: 4, 4",), b"abcd"),
        ((b"content-length: +4",), b"abcd"),
        ((b"transfer-encoding: xchunked",), b"0\r\n\r\n"),
        ((b"transfer-encoding: chunked",), b"4\r\nabcdXX0\r\n\r\n"),
        ((LENGTH, b"x-folded: a\r\n b"), BODY),
        ((LENGTH, b"x-nul: a\x00b"), BODY),
        ((LENGTH, b"bad header: x"), BODY),
    ],
)
def test_ambiguous_framing_is_refused_and_the_connection_closed(
    stage: Stage, headers: tuple[bytes, ...], body: bytes
) -> None:
    status, received = speak(stage, request(HOST, *headers, body=body, token=stage.token()))
    assert status == 400
    assert b"connection: close" in received
    head, _, answer = received.partition(b"\r\n\r\n")
    error = json.loads(answer)["error"]
    assert error["code"] in ("malformed_request", "invalid_json")
    assert b"x-request-id: " + error["request_id"].encode() in head
    assert stage.upstream.seen == []


def test_bare_line_feeds_are_refused(stage: Stage) -> None:
    assert speak(stage, b"GET /livez HTTP/1.1\nhost: x\n\n")[0] == 400


@pytest.mark.parametrize(
    "hosts",
    [(), (HOST, b"host: other.example"), (b"host: x/v1/health?",), (b"host: a b",), (b"host: user@x",), (b"host:",)],
)
def test_exactly_one_plain_host_is_needed(stage: Stage, hosts: tuple[bytes, ...]) -> None:
    status, received = speak(stage, request(*hosts, LENGTH, CLOSE, token=stage.token()))
    assert status == 400
    assert b"invalid_host" in received


def test_a_header_of_a_megabyte_is_refused_without_reading_it_all(stage: Stage) -> None:
    status, _ = speak(stage, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-bomb: ", b"a" * (1 << 20))
    assert status in (431, 0)


def test_a_block_just_over_the_limit_says_431(stage: Stage) -> None:
    status, received = speak(stage, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-bomb: " + b"a" * 400_000)
    assert status == 431
    assert b"headers_too_large" in received
    request_id = json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]["request_id"]
    assert b"x-request-id: " + request_id.encode() in received


def test_too_many_header_lines_are_refused(stage: Stage) -> None:
    lines = b"".join(b"x-%d: y\r\n" % number for number in range(200))
    assert speak(stage, b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n")[0] == 431


def test_a_silent_socket_is_closed(stage: Stage) -> None:
    status, _ = speak(stage)
    assert status == 408


def test_dripping_headers_are_cut_off(stage: Stage) -> None:
    drops = [b"GET /livez HTTP/1.1\r\n", *[b"x-%d: y\r\n" % number for number in range(20)]]
    assert speak(stage, *drops, pause_s=0.1)[0] == 408


def test_a_dripping_body_is_cut_off_with_408(stage: Stage) -> None:
    status, received = speak(stage, request(HOST, b"content-length: 100000", body=b"{", token=stage.token()))
    assert status == 408
    assert b"request_timeout" in received


def test_a_lying_length_is_refused_at_once(stage: Stage) -> None:
    status, received = speak(stage, request(HOST, b"content-length: 10000000000", body=b"", token=stage.token()))
    assert status == 413
    assert b"request_too_large" in received


def test_endless_chunks_are_cut_off_at_the_cap(stage: Stage) -> None:
    head = request(HOST, b"transfer-encoding: chunked", body=b"", token=stage.token())
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    status, _ = speak(stage, head, *[chunk] * 80)
    assert status in (413, 0)
    assert stage.upstream.seen == []


def test_healthy_traffic_goes_on_beside_idle_sockets(stage: Stage) -> None:
    host, port = stage.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        status, _ = speak(stage, request(HOST, LENGTH, CLOSE, token=stage.token()))
        assert status == 200
    finally:
        for link in idle:
            link.close()


@pytest.mark.parametrize(
    "path",
    [
        b"//v1/chat/completions",
        b"/v1/%2e%2e/livez",
        b"/livez/../v1/chat/completions",
        b"/v1/chat/completions;x",
        b"/V1/CHAT/COMPLETIONS",
        b"/v1/chat/completions/",
        b"/livez%2f..%2fv1/chat/completions",
    ],
)
def test_tricks_with_the_path_reach_nothing(stage: Stage, path: bytes) -> None:
    status, received = speak(stage, request(HOST, LENGTH, CLOSE, path=path))
    assert status in (400, 401, 404)
    assert b'"error"' in received
    assert stage.upstream.seen == []


@pytest.mark.parametrize(
    "extra",
    [b"x-forwarded-uri: /livez", b"x-original-url: /livez", b"x-http-method-override: GET", b"x-forwarded-host: x"],
)
def test_headers_that_name_another_route_change_nothing(stage: Stage, extra: bytes) -> None:
    assert speak(stage, request(HOST, LENGTH, CLOSE, extra))[0] == 401


def test_a_balancers_health_check_needs_no_host(stage: Stage) -> None:
    assert speak(stage, b"GET /livez HTTP/1.0\r\n\r\n")[0] == 200
    assert speak(stage, b"GET /readyz HTTP/1.0\r\n\r\n")[0] == 200
    assert speak(stage, b"GET /v1/models HTTP/1.0\r\n\r\n")[0] == 400
    assert speak(stage, b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n")[0] == 400


def test_two_credentials_are_ambiguous(stage: Stage) -> None:
    twice = b"authorization: Bearer " + stage.token(sub="u-2").encode()
    status, received = speak(stage, request(HOST, LENGTH, CLOSE, twice, token=stage.token()))
    assert status == 400
    assert b"ambiguous_credentials" in received


def test_a_token_in_the_query_is_no_credential(stage: Stage) -> None:
    path = b"/v1/chat/completions?access_token=" + stage.token().encode()
    status, received = speak(stage, request(HOST, LENGTH, CLOSE, path=path))
    assert status == 401
    assert b"missing_token" in received


def test_pipelined_requests_are_answered_one_by_one(stage: Stage) -> None:
    token = stage.token()
    first, second = request(HOST, LENGTH, token=token), request(HOST, LENGTH, CLOSE, token=token)
    _, received = speak(stage, first + second)
    assert received.count(b"HTTP/1.1 200 OK") == 2


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What `serve` would write, from here on."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    out = io.StringIO()
    configure_logs(LogSettings(level="debug", format="json"), out)
    yield out
    root.handlers = handlers
    root.setLevel(level)


def test_control_characters_in_a_request_reach_no_log_line_raw(stage: Stage, log: io.StringIO) -> None:
    refused = request(HOST, LENGTH, CLOSE, b"user-agent: evil\x1b[31m agent", token=stage.token())
    assert speak(stage, refused)[0] == 400
    path = b"/nowhere/%1b%5b31m%0d%0a%7b%22event%22:%22forged%22%7d"
    unknown = request(HOST, LENGTH, CLOSE, b"user-agent: evil\x9b31m", path=path, token=stage.token())
    assert speak(stage, unknown)[0] == 404
    text = log.getvalue()
    entries = [json.loads(line) for line in text.split("\n") if line]
    assert all(entry["event"] != "forged" for entry in entries)
    assert [entry["path"] for entry in entries if entry["logger"] == "esclusa.access"] == [
        '/nowhere/\x1b[31m\r\n{"event":"forged"}'
    ]
    assert not set(text) & (set(map(chr, range(32))) - {"\n"})
