"""Mutated requests over raw sockets: the gateway answers or closes, serves the next caller, and logs no surprise."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.mutations import mutate
from tests.fakes.stage import (  # noqa: F401
    Stage,
    _plain_upstream,
    issuer,
    stage,
    stage_database_url,
    upstream_thread,
)
from tests.fuzz.conftest import Budget


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    return {"http": {"port": 0, "metrics_port": None, "header_timeout_s": 0.3, "body_timeout_s": 0.3}}


def exchange(address: tuple[str, int], data: bytes, cut: int) -> str:
    """Send `data` in two parts; the first status line, `closed`, or `silent` when nothing comes within the guard."""
    with socket.create_connection(address, timeout=30) as link:
        try:
            link.sendall(data[:cut])
            link.sendall(data[cut:])
            first = link.recv(65536)
        except ConnectionError:
            return "closed"
        except TimeoutError:
            return "silent"
    return first[:12].decode("latin-1") if first else "closed"


def test_a_mutated_request_is_answered_or_the_connection_closed(
    stage: Stage,  # noqa: F811
    corpus: Path,
    budget: Budget,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host, port = stage.url.removeprefix("http://").split(":")
    token = stage.token().encode()
    sources = [path.read_bytes().replace(b"TOKEN", token) for path in sorted((corpus / "http").glob("*.http"))]
    outcomes: Counter[str] = Counter()
    started = time.monotonic()
    with caplog.at_level(logging.ERROR):
        for seed in range(budget.first_seed, budget.first_seed + budget.count(150)):
            if time.monotonic() - started > budget.seconds:
                break
            data = mutate(sources[seed % len(sources)], seed)
            outcomes[exchange((host, int(port)), data, seed % (len(data) + 1))] += 1
    sys.stdout.write(f"fuzz http: {dict(outcomes)}\n")
    assert outcomes["silent"] == 0
    assert not [status for status in outcomes if status.startswith("HTTP/1.1 50")], outcomes
    assert [record.getMessage() for record in caplog.records] == []
    assert httpx2.get(f"{stage.url}/livez").status_code == 200
