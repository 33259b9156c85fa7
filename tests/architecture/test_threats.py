"""The list of threats names a test for each, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/threats.md").read_text(encoding="utf-8")
ROWS = {line.split("|")[1].strip(): line for line in TEXT.splitlines() if re.match(r"\| T\d+ \|", line)}
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NEEDED = [*range(1, 40), *range(41, 41 + len(ROWS) - 39)]


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("number", NEEDED)
def test_each_threat_has_a_test(number: int) -> None:
    assert NODE.search(ROWS[f"T{number}"])


def test_every_test_that_is_named_exists() -> None:
    named = NODE.findall(TEXT)
    assert len(named) > 150
    missing = [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in functions(path)]
    assert not missing
