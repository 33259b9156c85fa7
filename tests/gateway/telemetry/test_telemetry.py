"""Logs that hold no secrets, one object a line; metrics with closed labels; the event loop's lag."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.settings import LogSettings
from gateway.telemetry.logs import _one_line, configure_logs, scrub
from gateway.telemetry.loop_lag import watch_loop_lag
from gateway.telemetry.metrics import GatewayMetrics, StateCollector
from tests.fakes.exchanges import admitted, denied, finished

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1LTEifQ.c2lnbmF0dXJl"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    out = io.StringIO()
    configure_logs(LogSettings(level="info", format="json"), out)
    yield out
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    "secret",
    [TOKEN, f"Bearer {TOKEN}", "bearer abcdefghijk", "sk-esclusa-abcdef123456", "postgresql://user:hunter2@db/x"],
)
def test_secrets_are_scrubbed(secret: str) -> None:
    cleaned = scrub(f"before {secret} after")
    assert "[redacted]" in cleaned
    for part in ("eyJ", "hunter2", "abcdef"):
        assert part not in cleaned
    assert cleaned.startswith("before ")


def test_a_log_line_is_one_json_object_whatever_it_says(log: io.StringIO) -> None:
    logging.getLogger("esclusa.x").info("line\nbreak \x1b[31m", extra={"agent": 'a"b\r\n', "token": f"Bearer {TOKEN}"})
    (line,) = log.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["event"] == "line\nbreak \x1b[31m"
    assert entry["agent"] == 'a"b\r\n'
    assert TOKEN not in line
    assert (entry["level"], entry["logger"]) == ("info", "esclusa.x")


@pytest.mark.parametrize(
    "sign",
    [
        *("\x7f", "\x85", "\x9b", "\u2028", "\u2029"),
        *("\u202e", "\u202a", "\u2066", "\u2069", "\u200f", "\u061c"),  # bidirectional controls
        *("\u200b", "\ufeff", "\u00ad", "\U000e0041", "\ufff9"),  # other format controls, tags
        *("\ue000", "\U0010fffd", "\U0001fffe", "\u0378"),  # private use, unassigned
    ],
    ids=lambda sign: f"U+{ord(sign):04X}",
)
def test_signs_that_end_lines_or_steer_terminals_are_escaped_and_letters_are_not(log: io.StringIO, sign: str) -> None:
    logging.getLogger("esclusa.x").info("año %s31m", sign)
    text = log.getvalue()
    assert sign not in text
    assert "año" in text
    (line,) = text.splitlines()
    assert json.loads(line)["event"] == f"año {sign}31m"


def test_half_a_surrogate_pair_is_escaped_and_can_be_written() -> None:
    line = _one_line({"event": "a\ud800"}, ensure_ascii=False)
    assert line.encode() == b'{"event": "a\\ud800"}'


def test_a_traceback_is_logged_with_its_secrets_scrubbed(log: io.StringIO) -> None:
    try:
        raise ValueError(f"bad {TOKEN}")
    except ValueError:
        logging.getLogger("esclusa.x").exception("failed")
    (line,) = log.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["exception"]
    assert TOKEN not in line


def test_finished_requests_are_counted_by_model_and_outcome() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.finished(finished(admitted()))
    metrics.finished(denied())
    text = generate_latest(registry).decode()
    assert 'gen_ai_token_type="output"} 12.0' in text
    assert 'esclusa_refusals_total{code="model_not_permitted"} 1.0' in text
    assert 'outcome="denied"' in text
    assert (
        'gen_ai_server_request_duration_seconds_bucket{gen_ai_request_model="smollm2-135m-instruct",le="0.5"} 1.0'
        in text
    )


def test_what_a_caller_wrote_never_becomes_a_label() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry).finished(denied())
    assert "qwen" not in generate_latest(registry).decode()


def test_states_are_read_when_asked() -> None:
    registry = CollectorRegistry()
    state: dict[str, object] = {"bytes": 1, "name": "text", "ok": True}
    registry.register(StateCollector({"spool": lambda: state}))
    state["bytes"] = 5
    text = generate_latest(registry).decode()
    assert "esclusa_spool_bytes 5.0" in text
    assert "esclusa_spool_ok 1.0" in text
    assert "text" not in text.replace("# HELP", "")


async def test_a_blocked_loop_shows_as_lag() -> None:
    seen: list[float] = []
    task = asyncio.create_task(watch_loop_lag(seen.append))
    await asyncio.sleep(0)
    time.sleep(0.8)  # noqa: ASYNC251 - blocking the loop is the point
    await asyncio.sleep(0.1)
    task.cancel()
    assert seen[0] >= 0.2
