"""Read a request body and turn it into JSON values, refusing everything two parsers could read differently.

Owns bytes, encoding, depth, numbers and duplicate keys; knows nothing of what the fields mean (`schemas`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.types import Receive

from gateway.errors import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType

MAX_DEPTH = 64
MAX_INT = 2**63 - 1
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_CLOSE = {"connection": "close"}


class ClientGone(Exception):
    """The client hung up while its body was being read."""


class BodyReader:
    """Bounded in bytes and in time. One per application."""

    def __init__(self, *, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

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
                kind, _, parameters = value.lower().partition(b";")
                if kind.strip() != b"application/json" or parameters.strip() not in (b"", b"charset=utf-8"):
                    raise UnsupportedMediaType(
                        "The body must be JSON.", hint="send `Content-Type: application/json`", headers=_CLOSE
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
    `json_too_deep`, `duplicate_key` or `number_out_of_range`; never repeats what was sent."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_unicode", hint="send UTF-8 JSON"
        ) from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(raw)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON at line {error.lineno}, column {error.colno}.", code="invalid_json"
        ) from None
    if "\\u" in text:
        _check_surrogates(value)
    return value


def _check_depth(raw: bytes) -> None:
    depth = 0
    for byte in _STRINGS.sub(b"", raw):
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidRequest(f"The body nests deeper than {MAX_DEPTH} levels.", code="json_too_deep")
        elif byte in b"]}":
            depth -= 1


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            "The body holds half of a surrogate pair, which is no character.", code="invalid_unicode"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest(
            "A key occurs twice in one object.", code="duplicate_key", hint="send each key once; readers disagree"
        )
    return found


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -MAX_INT - 1 <= (value := int(digits)) <= MAX_INT:
        raise _out_of_range()
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _out_of_range()
    return value


def _constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name.lstrip('-')} is not a JSON number.", code="invalid_json")


def _out_of_range() -> InvalidRequest:
    return InvalidRequest("A number does not fit into 64 bits.", code="number_out_of_range")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
