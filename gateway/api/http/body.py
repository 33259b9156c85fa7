"""Read a request body and turn it into JSON values, refusing everything two parsers could read differently.

Owns bytes, encoding, depth, the number of values, numbers and duplicate keys; knows nothing of what the fields mean
(`schemas`). What a body costs is bounded before it is parsed, and a long one is parsed beside the event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, TypeVar

import orjson
from starlette.types import Receive

from gateway.api.http.media_type import is_json
from gateway.documents.strict_json import Flaw, strict_decoder
from gateway.errors import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType

T = TypeVar("T")
MAX_DEPTH = 64
MAX_VALUES = 131_072
"""Keys, elements and containers of one body: a prompt of 128k token ids fits, and the longest step of parsing that no
other thread can interrupt stays under 40 ms."""
MAX_INT = 2**63 - 1
LONG = 64 * 1024
"""Bytes from which a body is parsed in the thread for long ones."""
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or what an unclosed one leaves: every quote is read once, so that the search is linear."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CLOSE = {"connection": "close"}


class ClientGone(Exception):
    """The client hung up while its body was being read."""


class BodyReader:
    """Bounded in bytes and in time. One per application."""

    def __init__(self, *, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        # One thread: whoever sends many long bodies keeps only other long bodies waiting.
        self._long = ThreadPoolExecutor(1, thread_name_prefix="esclusa-body")

    async def parsed(self, raw: bytes, parse: Callable[[Any], T]) -> T:
        """`parse` of the body's JSON. Raises what `parse_json` and `parse` raise."""
        if len(raw) < LONG:
            return parse(parse_json(raw))
        work = asyncio.get_running_loop().run_in_executor(self._long, lambda: parse(parse_json(raw)))
        return await work

    async def read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
        """The whole body. Raises `UnsupportedMediaType` (415), `RequestTooLarge` (413), `RequestTimeout` (408),
        `ClientGone`."""
        self._check_headers(headers)
        message = await self._next(receive)
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return self._fits(body)
        parts, size = [self._fits(body)], len(body)
        try:
            async with asyncio.timeout(self._timeout_s):
                while message.get("more_body", False):
                    message = await self._next(receive)
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_bytes:
                        raise self._too_large()
                    parts.append(part)
        except TimeoutError:
            raise self._too_slow() from None
        return b"".join(parts)

    async def _next(self, receive: Receive) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await receive()
        except TimeoutError:
            raise self._too_slow() from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return dict(message)

    def _check_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == b"content-length":
                if value.isdigit() and int(value[:20]) > self._max_bytes:
                    raise self._too_large()
            elif name == b"content-type":
                if not is_json(value):
                    raise UnsupportedMediaType(
                        "The body must be JSON in UTF-8.", hint="send `Content-Type: application/json`", headers=_CLOSE
                    )
            elif name == b"content-encoding" and value.lower().strip() != b"identity":
                raise UnsupportedMediaType(
                    "Compressed bodies are not accepted.", hint="send the body without `Content-Encoding`"
                )

    def _fits(self, part: bytes) -> bytes:
        if len(part) > self._max_bytes:
            raise self._too_large()
        return part

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The body is larger than {self._max_bytes} bytes.", headers=_CLOSE)

    def _too_slow(self) -> RequestTimeout:
        return RequestTimeout(f"The body did not arrive within {self._timeout_s:g} s.", headers=_CLOSE)


def parse_json(raw: bytes) -> Any:
    """Strict JSON (RFC 8259 as I-JSON, RFC 7493). Raises `InvalidRequest` with `invalid_json`, `invalid_unicode`,
    `json_too_deep`, `too_many_values`, `duplicate_key` or `number_out_of_range`; never repeats what was sent."""
    if raw.startswith(BOM_UTF8):
        raise InvalidRequest(
            "The body begins with a byte order mark (EF BB BF), which is no JSON.",
            code="invalid_json",
            hint="write UTF-8 without a byte order mark",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_unicode", hint="send UTF-8 JSON"
        ) from None
    _check_structure(raw)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON at line {error.lineno}, column {error.colno}.", code="invalid_json"
        ) from None
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


def _check_structure(raw: bytes) -> None:
    """Bounds what the parser will make of `raw`. Long texts are full of commas and brackets, so their strings are taken
    out where the plain count is too high."""
    marks, opened = _marks(raw)
    if marks <= MAX_VALUES and opened <= MAX_DEPTH:
        return
    bare, strings = _STRINGS.subn(b"", raw, count=MAX_VALUES + 1)
    marks, opened = _marks(bare)
    if marks > MAX_VALUES or strings > MAX_VALUES:
        raise InvalidRequest(
            f"The body holds more than {MAX_VALUES} values (keys, elements, lists and objects).",
            code="too_many_values",
            hint="send fewer, or several requests",
        )
    if opened > MAX_DEPTH:
        _check_depth(bare)


def _marks(raw: bytes) -> tuple[int, int]:
    """Signs that come with every value but the first, and those among them that open a container."""
    opened = raw.count(b"[") + raw.count(b"{")
    return opened + raw.count(b",") + raw.count(b":"), opened


def _check_depth(bare: bytes) -> None:
    # Brackets beyond twice those that open follow one that closes nothing: the parser stops there.
    brackets = bare.translate(_STEPS, _NOT_BRACKETS)[: 2 * MAX_VALUES]
    if max(accumulate(memoryview(brackets).cast("b")), default=0) > MAX_DEPTH:
        raise InvalidRequest(f"The body nests deeper than {MAX_DEPTH} levels.", code="json_too_deep")


def _check_surrogates(value: object) -> None:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise InvalidRequest(
            "The body holds half of a surrogate pair, which is no character.", code="invalid_unicode"
        ) from None


def _refused(flaw: Flaw, written: str) -> InvalidRequest:
    if flaw is Flaw.DUPLICATE_KEY:
        return InvalidRequest(
            "A key occurs twice in one object.", code="duplicate_key", hint="send each key once; readers disagree"
        )
    if flaw is Flaw.CONSTANT:
        return InvalidRequest(f"{written.lstrip('-')} is not a JSON number.", code="invalid_json")
    return InvalidRequest("A number does not fit into 64 bits.", code="number_out_of_range")


_DECODER = strict_decoder(_refused, most=MAX_INT)
