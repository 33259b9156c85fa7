"""The requests of an input file, line by line: which may run, or what is wrong with which line.

Pure: takes the file's bytes in pieces and never holds more than one line. What is inside the bodies is judged by the
route that each is for, when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.batches.values import InputLine, Problem
from gateway.errors import InvalidRequest

MAX_PROBLEMS = 100
MAX_CUSTOM_ID = 512
FIELDS = frozenset({"custom_id", "method", "url", "body"})


class InputJudge:
    """Feed it the pieces in order, then `end`. It stops judging once `MAX_PROBLEMS` are known."""

    def __init__(
        self,
        endpoint: str,
        parse: Callable[[bytes], Any],
        *,
        max_line_bytes: int,
        max_lines: int,
    ) -> None:
        """`parse` reads strict JSON and raises `InvalidRequest`."""
        self._endpoint, self._parse = endpoint, parse
        self._max_line_bytes, self._max_lines = max_line_bytes, max_lines
        self._rest, self._skipped, self._start, self._number = b"", 0, 0, 0
        self._lines: dict[str, int] = {}
        self.model: str | None = None
        self.problems: list[Problem] = []

    @property
    def count(self) -> int:
        return len(self._lines)

    def feed(self, piece: bytes) -> list[InputLine]:
        """The requests that have become complete with this piece."""
        found: list[InputLine] = []
        for raw, size in self._split(piece):
            found += self._read(raw, size)
        return found

    def end(self) -> list[InputLine]:
        """The last line where it has no line break, and the verdict on a file without any request."""
        rest, self._rest = self._rest, b""
        found = list(self._read(rest, len(rest) + self._skipped)) if rest else []
        if not self._lines and not self.problems:
            self._add("empty_file", "The file holds no request.", None)
        return found

    def _split(self, piece: bytes) -> Iterator[tuple[bytes, int]]:
        """Whole lines with their size in the file, the break included; of a line that is too long only its beginning
        is kept."""
        parts = piece.split(b"\n")
        for part in parts[:-1]:
            line, skipped = self._rest + part, self._skipped
            self._rest, self._skipped = b"", 0
            yield line, len(line) + skipped + 1
        self._rest += parts[-1]
        if len(self._rest) > self._max_line_bytes + 1:
            keep = self._max_line_bytes + 1
            self._skipped += len(self._rest) - keep
            self._rest = self._rest[:keep]

    def _read(self, raw: bytes, size: int) -> Iterator[InputLine]:
        start, self._start, self._number = self._start, self._start + size, self._number + 1
        line = raw.strip(b" \t\r")
        if not line or len(self.problems) >= MAX_PROBLEMS:
            return
        if len(line) > self._max_line_bytes:
            self._add("line_too_long", f"A line may have {self._max_line_bytes} bytes.", self._number)
        elif self.count >= self._max_lines:
            self._add("too_many_lines", f"A batch may have {self._max_lines} requests.", self._number)
        elif (custom_id := self._judge(line)) is not None:
            self._lines[custom_id] = self._number
            yield InputLine(self._number, custom_id, start, len(raw))

    def _judge(self, line: bytes) -> str | None:
        """The `custom_id` of a request that may run."""
        try:
            value = self._parse(line)
        except InvalidRequest as error:
            self._add(error.code, error.message, self._number)
            return None
        if not isinstance(value, dict):
            self._add("invalid_json", "A line must be a JSON object.", self._number)
            return None
        for check in (self._check_fields, self._check_custom_id, self._check_target, self._check_body):
            problem = check(value)
            if problem is not None:
                self._add(problem[0], problem[1], self._number, problem[2])
                return None
        custom_id: str = value["custom_id"]
        return custom_id

    def _check_fields(self, line: Mapping[str, Any]) -> tuple[str, str, str] | None:
        for name in ("custom_id", "method", "url", "body"):
            if name not in line:
                return "missing_required_parameter", f"`{name}` is required.", name
        if set(line) - FIELDS:
            return "unknown_parameter", "A line has `custom_id`, `method`, `url` and `body` only.", ""
        return None

    def _check_custom_id(self, line: Mapping[str, Any]) -> tuple[str, str, str] | None:
        custom_id = line["custom_id"]
        if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID or "\x00" in custom_id:
            return "invalid_value", f"`custom_id` must be a text of 1 to {MAX_CUSTOM_ID} characters.", "custom_id"
        if custom_id in self._lines:
            return "duplicate_custom_id", f"Line {self._lines[custom_id]} has the same `custom_id`.", "custom_id"
        return None

    def _check_target(self, line: Mapping[str, Any]) -> tuple[str, str, str] | None:
        if line["method"] != "POST":
            return "invalid_method", "`method` must be POST.", "method"
        if line["url"] != self._endpoint:
            return "invalid_url", f"`url` must be the endpoint of the batch, {self._endpoint}.", "url"
        return None

    def _check_body(self, line: Mapping[str, Any]) -> tuple[str, str, str] | None:
        body = line["body"]
        if not isinstance(body, dict):
            return "invalid_type", "`body` must be an object.", "body"
        model = body.get("model")
        if not isinstance(model, str) or not 1 <= len(model) <= 256 or "\x00" in model:
            return "missing_required_parameter", "`body.model` is required.", "body.model"
        if body.get("stream") not in (None, False):
            return "unsupported_parameter", "A request of a batch cannot be streamed.", "body.stream"
        if self.model is None:
            self.model = model
        if model != self.model:
            return "mismatched_model", "All requests of a batch must be for one model.", "body.model"
        return None

    def _add(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        self.problems.append(Problem(code, message, line, param or None))
