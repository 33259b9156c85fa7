"""What `make chaos` runs: whole gateways that are killed, frozen, starved, filled up and lied to.

Every test is marked `chaos`. `make test` runs those marked `short` as well; the others need ESCLUSA_CHAOS, which
`make chaos` sets. Each counts what it asked for and what became of it; the counts are printed as a table at the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_life import free_port
from tests.fakes.gateway_process import GatewayProcess
from tests.fakes.stage import UpstreamThread

HERE = Path(__file__).parent
FULL = bool(os.environ.get("ESCLUSA_CHAOS"))
_COUNTS = "chaos"

Start = Callable[..., GatewayProcess]
Count = Callable[..., None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = []
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.timeout(240))
            if not FULL and item.get_closest_marker("short") is None:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for state in ("passed", "failed") for report in terminalreporter.stats.get(state, ())]
    counted = [
        (report.nodeid.rpartition("::")[2], value)
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == _COUNTS
    ]
    if counted:
        terminalreporter.section("chaos counts")
        for test, value in counted:
            terminalreporter.write_line(f"{test}: {value}")


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """Keep numbers for the table: `count(requests=100, lost=0)`."""

    def keep(**numbers: object) -> None:
        record_property(_COUNTS, ", ".join(f"{name} {value}" for name, value in numbers.items()))

    return keep


@pytest.fixture
def upstream() -> Iterator[UpstreamThread]:
    """A model that answers word by word, as many as it is asked for."""
    with UpstreamThread() as thread:
        thread.script.words = tuple(f"w{number} " for number in range(200))
        thread.script.keeps_limits = True
        thread.script.mode, thread.script.delay_s = "slow", 0.01
        yield thread


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="esclusa-chaos-"))
    made.chmod(0o711)  # the user that Postgres runs as walks through it
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def gateway(folder: Path, upstream: UpstreamThread) -> Iterator[Start]:
    """Make a gateway process with these sections of settings; it is not started yet."""
    made: list[GatewayProcess] = []

    def make(**sections: dict[str, Any]) -> GatewayProcess:
        one = GatewayProcess(folder, (free_port(), free_port()), upstream.script.url, **sections)
        made.append(one)
        return one

    yield make
    for one in made:
        one.abandon()
