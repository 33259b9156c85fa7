"""The page of engine bugs names tests that exist, for every bug."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "engine-bugs.md").read_text(encoding="utf-8")
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED = sorted(set(NODE.findall(PAGE)))


def test_each_bug_has_a_test() -> None:
    rows = re.findall(r"^\| (\d+) \|.*$", PAGE, re.MULTILINE)
    assert len(rows) >= 37
    assert [int(number) for number in rows] == list(range(1, len(rows) + 1))
    assert all(NODE.search(line) for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}::{name}" for file, name in NAMED])
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async def {name}\(|def {name}\(|class {name}\b|{name} = )", source, re.MULTILINE)
