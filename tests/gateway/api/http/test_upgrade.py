"""Wishes to speak another protocol are ignored (RFC 9110 section 7.8), and never change where a request ends."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.api.http.connection_limits import ConnectionLimits
from gateway.api.http.protocol import GuardedProtocol, guarded
from gateway.flow.context import SystemIds
from tests.fakes.raw_http import RawClient
from tests.fakes.server_thread import Script, ServerThread

NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\n\r\n"
WISHES = [
    b"connection: Upgrade\r\nupgrade: websocket\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAA\r\n",
    b"CONNECTION: keep-alive, UPGRADE\r\nUPGRADE: foo/1, bar\r\n",
    b"upgrade: h2c\r\n",
    b"connection: upgrade\r\n",
    b"upgrade: h2c\r\nupgrade: websocket\r\nconnection: upgrade\r\nconnection: upgrade\r\n",
    b"upgrade:h2c\r\nconnection:\tupgrade\t\r\n",
    b"http2-settings: AAMAAABk\r\n",
]


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def post(wish: bytes, body: bytes = HIDDEN, *, in_chunks: bool = False) -> bytes:
    framing = b"transfer-encoding: chunked\r\n" if in_chunks else b"content-length: %d\r\n" % len(body)
    return b"POST /echo HTTP/1.1\r\nhost: x\r\n" + wish + framing + b"\r\n" + (chunked(body) if in_chunks else body)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as thread:
        yield thread


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("wish", WISHES)
def test_the_body_stays_the_body_and_one_request_has_one_answer(
    server: ServerThread, wish: bytes, in_chunks: bool
) -> None:
    with RawClient(server.url) as client:
        (first, second) = client.send(post(wish, in_chunks=in_chunks) + NEXT).read_all()
    assert (first.status, first.json()["body"]) == (200, HIDDEN.decode())
    assert second.json()["path"] == "/next"
    assert not {"upgrade", "http2-settings"} & {name for name, _ in first.json()["headers"]}


@pytest.mark.parametrize("wish", WISHES)
def test_a_body_that_comes_later_is_still_the_body(server: ServerThread, wish: bytes) -> None:
    """What a proxy that shares its connections would otherwise hand to the next caller."""
    whole = post(wish)
    with RawClient(server.url) as client:
        client.send(whole[: -len(HIDDEN)])
        client.send(whole[-len(HIDDEN) :])
        (first,) = client.read(1)
        assert first.json()["body"] == HIDDEN.decode()
        client.send(NEXT)
        assert [reply.json()["path"] for reply in client.read_all()] == ["/echo", "/next"]


def test_a_folded_wish_is_refused(server: ServerThread) -> None:
    with RawClient(server.url) as client:
        (reply,) = client.send(post(b"connection: upgrade\r\nupgrade: h2c\r\n h2\r\n")).read_all()
    assert reply.status == 400


@pytest.mark.parametrize("rest", [b"", b"host: x\r\n", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"])
def test_connect_is_refused_and_ends_the_connection(server: ServerThread, rest: bytes) -> None:
    with RawClient(server.url) as client:
        (reply,) = client.send(b"CONNECT inside.example:443 HTTP/1.1\r\n" + rest + b"\r\n" + NEXT).read_all()
    assert (reply.status, reply.headers["connection"]) == (405, "close")
    assert reply.json()["error"]["code"] == "method_not_allowed"


class Transport(asyncio.Transport):
    """Takes what is written; the bytes come from the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    write_eof = abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def requests_of(*pieces: bytes) -> list[tuple[str, str, bytes]]:
    """Feed the pieces to a connection of its own; the requests that the application saw, in order."""
    script = Script()
    kind = guarded(ConnectionLimits(), ids=SystemIds())
    config = uvicorn.Config(script, http=kind, ws="none", lifespan="off", log_config=None)
    state = ServerState()
    connection: GuardedProtocol = kind(config=config, server_state=state, app_state={})
    transport = Transport()
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closing:
            connection.data_received(piece)
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return script.seen


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("in_chunks", [False, True])
async def test_no_place_at_which_segments_break_makes_a_difference(wish: bytes, in_chunks: bool) -> None:
    stream = post(wish, in_chunks=in_chunks) + post(wish, in_chunks=in_chunks) + NEXT
    expected = [("POST", "/echo", HIDDEN), ("POST", "/echo", HIDDEN), ("GET", "/next", b"")]
    for cut in range(1, len(stream)):
        assert await requests_of(stream[:cut], stream[cut:]) == expected, cut


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(WISHES), st.booleans(), st.binary(min_size=1, max_size=60)), max_size=4),
    cuts=st.lists(st.integers(1, 1200), max_size=12),
)
def test_any_requests_in_any_segments_keep_their_bodies(
    kinds: list[tuple[bytes, bool, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(post(wish, body, in_chunks=in_chunks) for wish, in_chunks, body in kinds) + NEXT
    places = sorted({cut for cut in cuts if cut < len(stream)})
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    expected = [("POST", "/echo", body) for _, _, body in kinds] + [("GET", "/next", b"")]
    assert asyncio.run(requests_of(*pieces)) == expected


JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
public class Post {
  public static void main(String[] arguments) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    for (int number = 0; number < 3; number++) {
      HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0] + "/echo"))
          .header("Content-Type", "application/json")
          .POST(HttpRequest.BodyPublishers.ofString("{\\"number\\":" + number + "}")).build();
      HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
      System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
    }
  }
}
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no java here")
def test_javas_own_client_posts_although_it_would_rather_speak_http_2(server: ServerThread, tmp_path: Path) -> None:
    source = tmp_path / "Post.java"
    source.write_text(JAVA)
    ended = subprocess.run(["java", source, server.url], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [["200", "HTTP_1_1"]] * 3
    for number, line in enumerate(lines):
        assert json.loads(line.split(" ", 2)[2])["body"] == f'{{"number":{number}}}'


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_may_ask_for_http_2(server: ServerThread) -> None:
    command = ["curl", "-s", "-m", "30", "--http2", "-w", " %{http_code} %{http_version}", "-d", "hello"]
    ended = subprocess.run([*command, server.url + "/echo"], capture_output=True, text=True, timeout=60, check=False)
    assert '"body": "hello"' in ended.stdout
    assert ended.stdout.endswith(" 200 1.1")
