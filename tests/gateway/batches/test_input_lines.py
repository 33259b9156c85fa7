"""Input files: however they are cut into pieces, the same lines with the same places, and each fault by its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.api.batch_lines import read_line
from gateway.batches.input_lines import MAX_PROBLEMS, InputJudge
from gateway.batches.values import InputLine
from tests.gateway.batches.conftest import ENDPOINT, line


def judged(
    content: bytes, size: int = 10_000, *, max_line_bytes: int = 1000, max_lines: int = 100
) -> tuple[InputJudge, list[InputLine]]:
    judge = InputJudge(ENDPOINT, read_line, max_line_bytes=max_line_bytes, max_lines=max_lines)
    found = [one for start in range(0, len(content), size) for one in judge.feed(content[start : start + size])]
    return judge, found + judge.end()


def told(content: bytes | Sequence[Any], **bounds: int) -> list[tuple[int | None, str, str | None]]:
    raw = content if isinstance(content, bytes) else b"\n".join(json.dumps(one).encode() for one in content)
    judge, _ = judged(raw, **bounds)
    return [(one.line, one.code, one.param) for one in judge.problems]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n"])
def test_lines_are_found_where_they_are(size: int, end: bytes) -> None:
    content = b"\r\n".join(json.dumps(line(f"ñ-{number}"), ensure_ascii=False).encode() for number in range(5)) + end
    judge, found = judged(content, size)
    assert (judge.problems, judge.count, judge.model) == ([], 5, "mini")
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    for one in found:
        assert json.loads(content[one.start : one.start + one.size])["custom_id"] == one.custom_id


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        ([1], "invalid_json", None),
        ({"custom_id": "x", "method": "POST", "url": ENDPOINT}, "missing_required_parameter", "body"),
        ({**line("x"), "priority": 1}, "unknown_parameter", None),
        ({**line("x"), "custom_id": 7}, "invalid_value", "custom_id"),
        (line(""), "invalid_value", "custom_id"),
        (line("x" * 513), "invalid_value", "custom_id"),
        (line("a\x00"), "invalid_value", "custom_id"),
        (line("first"), "duplicate_custom_id", "custom_id"),
        ({**line("x"), "method": "post"}, "invalid_method", "method"),
        ({**line("x"), "url": "https://elsewhere/v1/chat/completions"}, "invalid_url", "url"),
        ({**line("x"), "body": "model"}, "invalid_type", "body"),
        ({**line("x"), "body": {}}, "missing_required_parameter", "body.model"),
        (line("x", stream=True), "unsupported_parameter", "body.stream"),
        (line("x", stream="no"), "unsupported_parameter", "body.stream"),
        (line("x", model="maxi"), "mismatched_model", "body.model"),
        (line("x", pad="x" * 1000), "line_too_long", None),
    ],
)
def test_each_fault_is_told_with_its_line(wrong: Any, code: str, param: str | None) -> None:
    assert told([line("first", stream=False), wrong, line("last")]) == [(2, code, param)]


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b'{"a": 1, "a": 2}', "duplicate_key"), (b"\xff", "invalid_unicode"), (b"[" * 99 + b"]" * 99, "json_too_deep")],
)
def test_a_line_is_strict_json(raw: bytes, code: str) -> None:
    assert told(raw) == [(1, code, None)]


def test_a_file_without_a_request_is_told() -> None:
    assert told(b"\n \r\n") == [(None, "empty_file", None)]


def test_a_line_that_is_far_too_long_keeps_the_places_of_those_behind_it() -> None:
    content = b"x" * 5000 + b"\n" + json.dumps(line("good")).encode()
    judge, found = judged(content, 64)
    assert [(one.line, one.code) for one in judge.problems] == [(1, "line_too_long")]
    assert [(one.number, one.start) for one in found] == [(2, 5001)]


def test_more_lines_than_a_batch_may_have_are_told() -> None:
    assert told([line(str(number)) for number in range(4)], max_lines=3) == [(4, "too_many_lines", None)]


def test_faults_are_told_up_to_a_bound() -> None:
    assert len(told(b"no\n" * 1000)) == MAX_PROBLEMS
