"""The page of failures names a test for each, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "reliability.md").read_text(encoding="utf-8")
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| R\d+ \|", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_failure_has_tests_that_exist(row: str) -> None:
    named = NODE.findall(row)
    assert named
    for file, name in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), f"{file}::{name}"


def test_the_page_is_not_empty() -> None:
    assert len(ROWS) >= 17
