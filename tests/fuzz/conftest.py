"""What `make fuzz` runs. Every test here is marked `fuzz`; in `make test` each runs a short, fixed part of it.

`ESCLUSA_FUZZ_S` is the time of each test in seconds, `ESCLUSA_FUZZ_SEED` the first seed (both printed on failure).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = HERE.parent / "data" / "fuzz"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.fuzz)
            item.add_marker(pytest.mark.timeout(1800))


@dataclass(frozen=True)
class Budget:
    """How much to try: `count` cases of a short run; in a long one, as many as fit into `seconds`."""

    seconds: float
    first_seed: int
    long: bool

    def count(self, short: int) -> int:
        return 1_000_000 if self.long else short


@pytest.fixture(scope="session")
def budget() -> Budget:
    given = os.environ.get("ESCLUSA_FUZZ_S")
    return Budget(float(given or 120.0), int(os.environ.get("ESCLUSA_FUZZ_SEED", "1")), long=given is not None)


@pytest.fixture
def corpus() -> Path:
    return CORPUS
