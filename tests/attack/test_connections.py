"""Connections held, dripped, unread and cut, against a whole gateway: what others get, and what the record says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from tests.fakes.raw_http import RawClient
from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    http = {"port": 0, "metrics_port": None, "header_timeout_s": 1.0, "body_timeout_s": 1.0, "write_timeout_s": 1.0}
    model = {"id": "mini", "tier": "small", "upstream": "up", "context_window": 8_000_000}
    return {"http": {**http, "max_connections": 100, "max_connections_per_address": 100}, "models": (model,)}


def raw(stage: Stage, sub: str, body: dict[str, Any], *, length: int | None = None) -> bytes:
    text = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stage.token(sub=sub)}\r\n"
        f"content-type: application/json\r\ncontent-length: {length or len(text)}\r\n\r\n"
    )
    return head.encode() + text


def eventually(condition: Callable[[], Any], hang_s: float = 30.0) -> None:
    deadline = time.monotonic() + hang_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def number(stage: Stage, name: str) -> float:
    value = stage.gateway.services.registry.get_sample_value(f"esclusa_connections_{name}")
    assert value is not None
    return value


def outcomes(stage: Stage, sub: str, expect: int) -> list[str]:
    rows = stage.records_of(sub, expect=2 * expect, timeout_s=30.0)
    return [row["outcome"] for row in rows if row["phase"] == "completion"]


def is_served(stage: Stage) -> bool:
    return httpx2.post(stage.url + PATH, json=ASK, headers=stage.headers(), timeout=30).status_code == 200


@pytest.fixture
def big_answers(stage: Stage) -> None:
    """9 MB each: more than the system takes for a reader that does not read."""
    stage.upstream.words = tuple("x" * 20_000 for _ in range(450))


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nx",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx",
        b"GET /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nx",
        b"GET /health HT",
        b"",
    ],
)
def test_strangers_who_hold_connections_lock_nobody_out(stage: Stage, sent: bytes) -> None:
    with ExitStack() as held:
        clients = [held.enter_context(RawClient(stage.url)).send(sent) for _ in range(300)]
        eventually(lambda: is_served(stage))
        assert number(stage, "open") <= 132
        for client in clients:
            client.read_all()


def test_dripping_bodies_end_and_are_on_record(stage: Stage) -> None:
    with ExitStack() as held:
        clients = [held.enter_context(RawClient(stage.url)) for _ in range(10)]
        for client in clients:
            client.send(raw(stage, "u-drip", ASK, length=100_000))
        for _ in range(200):
            if all(client.replies for client in clients):
                break
            for client in clients:
                if not client.replies:
                    client.send(b" ")
                    client.wait(0.01)
        assert {client.replies[0].status for client in clients} == {408}
    rows = stage.records_of("u-drip", expect=20, timeout_s=30.0)
    assert [row["http_status"] for row in rows if row["phase"] == "completion"] == [408] * 10


def test_whole_answers_that_nobody_reads_cost_a_bounded_time(stage: Stage, big_answers: None) -> None:
    before = number(stage, "unread_answers")
    with ExitStack() as held:
        for _ in range(10):
            held.enter_context(RawClient(stage.url, receive_buffer=2048)).send(raw(stage, "u-unread", ASK))
        # The record says what was made and handed over; whether it was read is not known when it is written.
        assert outcomes(stage, "u-unread", 10) == ["ok"] * 10
        eventually(lambda: number(stage, "unsent_bytes") == 0)
        eventually(lambda: number(stage, "open") == 0)
        # What the system's own buffers have taken whole is not seen as unread.
        assert 1 <= number(stage, "unread_answers") - before <= 10


def test_streams_that_nobody_reads_are_recorded_as_such_and_their_connections_closed(
    stage: Stage, big_answers: None
) -> None:
    with ExitStack() as held:
        for _ in range(5):
            client = held.enter_context(RawClient(stage.url, receive_buffer=2048))
            client.send(raw(stage, "u-stalls", {**ASK, "stream": True}))
        assert outcomes(stage, "u-stalls", 5) == ["client_disconnect"] * 5
        eventually(lambda: number(stage, "open") == 0)
        assert stage.gateway.services.in_flight.count == 0


def test_a_reader_of_a_few_bytes_a_second_is_a_reader_that_stalls(stage: Stage, big_answers: None) -> None:
    with RawClient(stage.url, receive_buffer=2048) as client:
        client.send(raw(stage, "u-trickle", {**ASK, "stream": True}))
        done = threading.Event()

        def trickle() -> None:
            while not done.wait(0.2):
                client.link.recv(1)

        reader = threading.Thread(target=trickle)
        reader.start()
        try:
            assert outcomes(stage, "u-trickle", 1) == ["client_disconnect"]
        finally:
            done.set()
            reader.join()


def test_a_pipeline_of_streams_that_is_reset_is_a_hang_up_without_a_fault(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.02
    stage.upstream.words = tuple(f"w{count} " for count in range(400))
    clients = [RawClient(stage.url) for _ in range(10)]
    for client in clients:
        client.send(raw(stage, "u-pipe", {**ASK, "stream": True}) * 5)
    for client in clients:
        client.link.recv(1000)
        client.reset()
    assert outcomes(stage, "u-pipe", 10) == ["client_disconnect"] * 10
    eventually(lambda: stage.gateway.services.in_flight.count == 0)
    assert len(outcomes(stage, "u-pipe", 10)) == 10, "what was never begun leaves no record"
    assert not [record for record in caplog.records if record.exc_info]


def test_a_half_closed_client_gets_its_answer(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.1
    for body in (ASK, {**ASK, "stream": True}):
        with RawClient(stage.url) as client:
            (reply,) = client.send(raw(stage, "u-half", body)).half_close().read_all()
            assert (reply.status, reply.whole) == (200, True)
    assert outcomes(stage, "u-half", 2) == ["ok", "ok"]


def test_a_client_that_closes_before_the_answer_is_noticed(stage: Stage) -> None:
    stage.upstream.mode = "hang"
    client = RawClient(stage.url).send(raw(stage, "u-closes", ASK))
    eventually(lambda: stage.gateway.services.in_flight.count)
    client.link.close()
    assert outcomes(stage, "u-closes", 1) == ["client_disconnect"]
