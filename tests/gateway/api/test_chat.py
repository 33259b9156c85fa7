"""Chat over HTTP: whole and streamed answers, their bytes, headers, refusals and records."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

import httpx2
import pytest

from gateway.limits.denial import CONTENTION_S
from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


def post(stage: Stage, body: dict[str, Any], *roles: str, **claims: Any) -> httpx2.Response:
    return httpx2.post(stage.url + PATH, json=body, headers=stage.headers(*roles, **claims))


def events(response: httpx2.Response) -> list[Any]:
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def test_a_whole_answer_has_openais_shape(stage: Stage) -> None:
    response = post(stage, ASK)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "mini"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hola, mundo!", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 15


def test_hints_that_nothing_follows_are_named_in_the_answer(stage: Stage) -> None:
    hints = {"reasoning_effort": "low", "prompt_cache_key": "team-7"}
    answer = post(stage, {**ASK, **hints}, sub="u-hints")
    assert answer.status_code == 200
    assert answer.headers["x-esclusa-ignored"] == "prompt_cache_key, reasoning_effort"
    assert "x-esclusa-ignored" not in post(stage, ASK, sub="u-hints").headers


def test_headers_explain_the_answer(stage: Stage) -> None:
    headers = post(stage, {**ASK, "model": "maxi"}, "capped", sub="u-headers").headers
    assert headers["x-esclusa-model"] == "maxi"
    assert headers["x-esclusa-route"] == "direct"
    assert headers["x-esclusa-policy-version"] == "1"
    assert headers["x-esclusa-cost"] == "0.000019 EUR"
    assert headers["x-esclusa-audit-id"] == headers["x-request-id"]
    assert float(headers["x-esclusa-overhead-ms"]) > 0
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-content-type-options"] == "nosniff"


def test_the_clients_request_id_is_a_label_only(stage: Stage) -> None:
    answers = [
        httpx2.post(stage.url + PATH, json=ASK, headers={**stage.headers(), "x-request-id": "mine-1"}) for _ in range(2)
    ]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert {answer.headers["x-client-request-id"] for answer in answers} == {"mine-1"}
    (intent, _) = stage.records(ids.pop())
    assert json.loads(intent["personal"])["client_request_id"] == "mine-1"


def test_a_stream_opens_with_the_role_and_ends_with_done(stage: Stage) -> None:
    response = post(stage, {**ASK, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-esclusa-model"] == "mini"
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hola, mundo!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_the_usage_chunk_comes_last_and_has_no_choices(stage: Stage) -> None:
    response = post(stage, {**ASK, "stream": True, "stream_options": {"include_usage": True}})
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)


def test_several_choices_come_back_in_order(stage: Stage) -> None:
    body = post(stage, {**ASK, "n": 2}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert stage.upstream.seen[0].body["n"] == 2


def test_the_upstream_sees_its_own_model_and_key_and_nothing_of_the_caller(stage: Stage) -> None:
    post(stage, {**ASK, "temperature": 0.5, "user": "label-7"})
    (seen,) = stage.upstream.seen
    assert seen.body["model"] == "up-mini"
    assert seen.body["temperature"] == 0.5
    assert seen.headers["authorization"] == "Bearer up-secret-key"
    assert "label-7" not in json.dumps(seen.body)
    assert not any("eyJ" in value for value in seen.headers.values())


def test_an_answer_leaves_an_intent_and_a_completion(stage: Stage) -> None:
    response = post(stage, ASK, sub="u-records")
    intent, completion = stage.records(response.headers["x-request-id"])
    assert (intent["phase"], completion["phase"]) == ("intent", "completion")
    assert completion["subject"] == "u-records"
    assert completion["model_served"] == "mini"
    assert (completion["outcome"], completion["http_status"], completion["finish_reason"]) == ("ok", 200, "stop")
    assert (completion["tokens_in"], completion["tokens_out"]) == (11, 4)


def test_an_employee_is_refused_the_large_model_on_record(stage: Stage) -> None:
    response = post(stage, {**ASK, "model": "maxi"}, "employee", sub="u-employee")
    error = response.json()["error"]
    assert response.status_code == 403
    assert (error["type"], error["code"], error["param"]) == ("permission_error", "model_not_permitted", "model")
    assert error["request_id"] == response.headers["x-request-id"]
    intent, completion = stage.records(error["request_id"])
    assert (intent["decision"], completion["decision"]) == ("deny", "deny")
    assert completion["deny_code"] == "model_not_permitted"
    assert completion["outcome"] == "denied"
    assert stage.upstream.seen == []


def test_auto_is_routed_and_says_why(stage: Stage) -> None:
    response = post(stage, {**ASK, "model": "auto"})
    assert response.json()["model"] == "mini"
    assert response.headers["x-esclusa-route"] == "small"
    assert "difficulty" in response.headers["x-esclusa-route-reason"]


def test_auto_is_no_way_round_for_an_employee(stage: Stage) -> None:
    hard = "Prove the theorem step by step, then implement it: ```def f(x): ...``` " * 20
    body = {"model": "auto", "messages": [{"role": "user", "content": hard}], "max_tokens": 8}
    assert post(stage, body, "analyst").json()["model"] == "maxi"
    assert post(stage, body, "employee").json()["model"] == "mini"


def test_a_full_window_says_when_to_come_back(stage: Stage) -> None:
    answers = [post(stage, ASK, "capped", sub="u-capped") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refusal = answers[-1]
    assert refusal.json()["error"]["code"] == "requests_rate_limited"
    assert 1 <= int(refusal.headers["retry-after"]) <= 60
    assert refusal.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_spent_budget_ends_the_answer_at_the_token_and_then_refuses(stage: Stage) -> None:
    stage.upstream.words = tuple(f"w{number} " for number in range(60))
    body = {**ASK, "stream": True, "max_tokens": 60}
    chunks = events(post(stage, body, "thrifty", sub="u-thrifty"))
    last = chunks[-2]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["x_esclusa"]["stop"] == "budget"
    refusal = post(stage, body, "thrifty", sub="u-thrifty")
    assert refusal.status_code == 429
    assert refusal.json()["error"]["code"] == "budget_exceeded"
    assert refusal.json()["error"]["type"] == "insufficient_quota"
    soon = int(refusal.headers["retry-after"]) < CONTENTION_S  # the day may end while this runs
    assert refusal.headers["x-should-retry"] == ("true" if soon else "false")


def test_an_upstream_that_dies_midstream_is_an_error_and_not_an_end(stage: Stage) -> None:
    stage.upstream.mode = "die"
    response = post(stage, {**ASK, "stream": True})
    *chunks, last = events(response)
    assert response.status_code == 200
    assert last["error"]["code"] == "upstream_failed"
    assert "[DONE]" not in response.text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * len(chunks)
    _, completion = stage.records(last["error"]["request_id"])
    assert completion["outcome"] == "engine_error"
    assert completion["tokens_out"] == 2


def test_an_upstreams_error_text_goes_no_further(stage: Stage) -> None:
    for mode, status, code in (
        ("error", 502, "upstream_failed"),
        ("busy", 503, "upstream_overloaded"),
        ("refuse", 400, "upstream_refused"),
    ):
        stage.upstream.mode = mode
        response = post(stage, ASK)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert "secret upstream text" not in response.text


def test_an_overloaded_upstreams_retry_after_is_passed_on(stage: Stage) -> None:
    stage.upstream.mode = "busy"
    assert post(stage, ASK).headers["retry-after"] == "7"


def test_a_client_that_hangs_up_frees_the_upstream_and_is_recorded(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.1
    stage.upstream.words = tuple(f"w{number} " for number in range(100))
    with httpx2.stream("POST", stage.url + PATH, json={**ASK, "stream": True}, headers=stage.headers()) as response:
        request_id = response.headers["x-request-id"]
        for _ in response.iter_lines():
            break
    _, completion = stage.records(request_id, timeout_s=30.0)
    assert completion["outcome"] == "client_disconnect"
    assert 1 <= completion["tokens_out"] < 100


def test_a_client_that_hangs_up_before_the_first_byte_is_recorded(stage: Stage) -> None:
    stage.upstream.mode = "hang"
    marker = {**stage.headers(sub="u-impatient"), "x-request-id": "impatient"}
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(stage.url + PATH, json=ASK, headers=marker, timeout=0.3)
    rows = stage.records_of("u-impatient")
    assert [row["phase"] for row in rows] == ["intent", "completion"]
    assert rows[-1]["outcome"] == "client_disconnect"


def test_a_revoked_subject_is_stopped_in_the_middle(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.1
    stage.upstream.words = tuple(f"w{number} " for number in range(200))
    body = {**ASK, "stream": True}
    lines: list[str] = []
    with httpx2.stream(
        "POST", stage.url + PATH, json=body, headers=stage.headers(sub="u-gone"), timeout=30
    ) as response:
        for line in response.iter_lines():
            if line:
                lines.append(line)
            if len(lines) == 3:
                stage.revoke(sub="u-gone")
                lines.append("revoked")
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["x_esclusa"]["stop"] == "revoked"
    assert len(lines) < 100
    assert httpx2.post(stage.url + PATH, json=ASK, headers=stage.headers(sub="u-gone")).status_code == 401


def test_a_storm_of_hang_ups_leaves_a_completion_for_each_and_no_slot_taken(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.05
    stage.upstream.words = tuple(f"w{number} " for number in range(400))
    host, port = stage.url.removeprefix("http://").split(":")
    body = json.dumps({**ASK, "stream": True}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stage.token(sub='u-storm')}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    links = [socket.create_connection((host, int(port))) for _ in range(60)]
    for link in links:
        link.sendall(head + body)
    for link in links:
        assert link.recv(1000).startswith(b"HTTP/1.1 200")
    for link in links:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()
    hangs_at = time.monotonic() + 30
    while stage.gateway.services.in_flight.count:
        assert time.monotonic() < hangs_at
        time.sleep(0.02)
    rows = stage.records_of("u-storm", expect=120)
    completions = [row for row in rows if row["phase"] == "completion"]
    assert len(rows) == 120
    assert {row["outcome"] for row in completions} == {"client_disconnect"}
    assert all(row["tokens_out"] >= 1 for row in completions)
