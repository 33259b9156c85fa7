"""No test judges how long something took: a busy or slow machine would fail it without a fault.

What may be asserted about time: that something happens before a generous deadline (`time.monotonic() < deadline`), the
order of events, and the processor time of the test's own thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WALL_CLOCKS = {"monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns"}
FILES = sorted(TESTS.rglob("test_*.py"))


def elapsed(node: ast.AST, started: set[str]) -> bool:
    """Whether an expression holds the difference of two readings of a wall clock."""
    return any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and (_reads(part.left) or _named(part, started))
        for part in ast.walk(node)
    )


def _reads(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in WALL_CLOCKS


def _named(part: ast.BinOp, started: set[str]) -> bool:
    return any(isinstance(side, ast.Name) and side.id in started for side in (part.left, part.right))


def judged(tree: ast.Module) -> Iterator[int]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        started = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _reads(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and elapsed(node.test, started):
                yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_no_assertion_judges_elapsed_time(file: Path) -> None:
    assert list(judged(ast.parse(file.read_text(encoding="utf-8")))) == []


def test_the_check_finds_such_an_assertion() -> None:
    bad = "import time\ndef test_x():\n    s = time.monotonic()\n    work()\n    assert time.monotonic() - s < 1\n"
    good = "import time\ndef test_x():\n    d = time.monotonic() + 9\n    assert time.monotonic() < d\n"
    assert list(judged(ast.parse(bad))) == [5]
    assert list(judged(ast.parse(good))) == []
