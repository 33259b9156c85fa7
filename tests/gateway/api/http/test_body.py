"""Strict JSON: everything that two parsers could read differently is refused (T14, T23, T24, T25, T27)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.api.http.body import BodyReader, ClientGone, parse_json
from gateway.errors import GatewayError, InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType

READER = BodyReader(max_bytes=1000, timeout_s=0.2)
JSON_TYPE = (b"content-type", b"application/json")


class Feed:
    """An ASGI `receive` that gives these parts, then waits for ever."""

    def __init__(self, *parts: bytes, ends: bool = True) -> None:
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": not (ends and number == len(parts) - 1)}
            for number, part in enumerate(parts)
        ]

    async def __call__(self) -> dict[str, Any]:
        if not self._messages:
            await asyncio.sleep(3600)
        return self._messages.pop(0)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": Infinity}', "invalid_json"),
        (b'{"a": -Infinity}', "invalid_json"),
        (b'{"a": 1e400}', "number_out_of_range"),
        (b'{"a": -1e400}', "number_out_of_range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number_out_of_range"),
        (b'{"a": 9223372036854775808}', "number_out_of_range"),
        (b'{"a": -9223372036854775809}', "number_out_of_range"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'{"x": {"model": "mini", "model": "maxi"}}', "duplicate_key"),
        (b'{"mod\\u0065l": 1, "model": 2}', "duplicate_key"),
        (b'{"a": "\xff"}', "invalid_unicode"),
        (b'{"a": "\\ud800"}', "invalid_unicode"),
        (b'{"\\udc00": 1}', "invalid_unicode"),
        (b'\xef\xbb\xbf{"a": 1}', "invalid_json"),
        ('{"a": 1}'.encode("utf-16-le"), "invalid_json"),
        ('{"a": 1}'.encode("utf-16"), "invalid_unicode"),
        (b'{"a": 01}', "invalid_json"),
        (b'{"a": 1,}', "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a": "line\nbreak"}', "invalid_json"),
        (b'{"a": 1} {"b": 2}', "invalid_json"),
        (b"", "invalid_json"),
        (b"[" * 100_000, "json_too_deep"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "json_too_deep"),
    ],
)
def test_ambiguous_or_hostile_json_is_refused(raw: bytes, code: str) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequest) as caught:
        parse_json(raw)
    assert caught.value.code == code
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    "value",
    [
        {"text": "¡Hola! 你好 🎉", "n": 9223372036854775807, "m": -9223372036854775808},
        {"nul": "a\u0000b"},
        {"pair": "\U0001f600"},
        {"brackets": "[[[[{{{{" * 1000},
        [[1, 2.5, None, True], {"a": {}}],
    ],
)
def test_good_json_is_read_as_it_is(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_sixty_four_levels_are_enough_and_accepted() -> None:
    raw = b"[" * 64 + b"]" * 64
    assert json.dumps(parse_json(raw)).encode() == raw


def test_many_brackets_inside_a_long_text_are_no_depth() -> None:
    started = time.thread_time()
    parse_json(json.dumps({"code": 'if (a[0]) { "x" }\\' * 100_000}).encode())
    assert time.thread_time() - started < 2


def test_an_error_never_repeats_what_was_sent() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(b'{"password": "hunter2", }')
    assert "hunter2" not in caught.value.message + str(caught.value.hint)


async def test_a_body_in_parts_is_joined() -> None:
    assert await READER.read([JSON_TYPE], Feed(b'{"a"', b": 1", b"}")) == b'{"a": 1}'


async def test_bytes_are_counted_while_they_arrive() -> None:
    with pytest.raises(RequestTooLarge):
        await READER.read([JSON_TYPE], Feed(b"x" * 600, b"x" * 600, ends=False))


async def test_a_lying_length_is_refused_before_a_byte_is_read() -> None:
    with pytest.raises(RequestTooLarge) as caught:
        await READER.read([JSON_TYPE, (b"content-length", b"10000000000")], Feed())
    assert caught.value.headers["connection"] == "close"


@pytest.mark.parametrize("parts", [(), (b"{",)])
async def test_a_slow_body_times_out(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(RequestTimeout):
        await READER.read([JSON_TYPE], Feed(*parts, ends=False))


async def test_a_client_that_leaves_while_sending_is_no_error() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await READER.read([JSON_TYPE], receive)


@pytest.mark.parametrize(
    "header",
    [
        (b"content-type", b"multipart/form-data; boundary=x"),
        (b"content-type", b"text/plain"),
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"content-type", b"application/json; charset=utf-16"),
        (b"content-encoding", b"gzip"),
    ],
)
async def test_other_media_are_refused(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(UnsupportedMediaType):
        await READER.read([header], Feed(b"{}"))


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_json(b"\xef\xbb\xbf{}")
    assert "byte order mark" in refusal.value.message
    assert refusal.value.hint == "write UTF-8 without a byte order mark"


async def test_json_with_utf8_is_accepted() -> None:
    headers = [(b"content-type", b"application/json; charset=UTF-8"), (b"content-encoding", b"identity")]
    assert await READER.read(headers, Feed(b"{}")) == b"{}"


def test_every_refusal_of_a_body_is_a_client_error() -> None:
    assert {kind.status for kind in (InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType)} == {
        400,
        408,
        413,
        415,
    }
    assert all(issubclass(kind, GatewayError) for kind in (RequestTimeout, RequestTooLarge))
