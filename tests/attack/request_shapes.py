"""Requests that two readers could end at different places. In each, `HIDDEN` is body or the request is malformed."""

from __future__ import annotations

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"


def _post(*headers: bytes, body: bytes, version: bytes = b"1.1", line: bytes = b"POST /echo") -> bytes:
    return line + b" HTTP/" + version + b"\r\n" + b"\r\n".join((b"host: x", *headers)) + b"\r\n\r\n" + body


CHUNKED = b"transfer-encoding: chunked"
LENGTH = b"content-length: %d" % len(HIDDEN)
AFTER_LAST = b"0\r\n\r\n" + HIDDEN
ONE_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)

LENGTHS = {
    "two equal": _post(LENGTH, LENGTH, body=HIDDEN),
    "two different": _post(b"content-length: 0", LENGTH, body=HIDDEN),
    "list": _post(b"content-length: 0, %d" % len(HIDDEN), body=HIDDEN),
    "plus": _post(b"content-length: +0", body=HIDDEN),
    "minus": _post(b"content-length: -1", body=HIDDEN),
    "hexadecimal": _post(b"content-length: 0x0", body=HIDDEN),
    "inner blank": _post(b"content-length: 0 0", body=HIDDEN),
    "overflowing": _post(b"content-length: 18446744073709551616", body=HIDDEN),
    "empty": _post(b"content-length:", body=HIDDEN),
    "folded": _post(b"content-length:\r\n 0", body=HIDDEN),
    "blank before colon": _post(b"content-length : 0", body=HIDDEN),
    "nominated by connection": _post(LENGTH, b"connection: content-length", body=HIDDEN),
    "of a GET": _post(LENGTH, body=HIDDEN, line=b"GET /echo"),
    "expectation": _post(LENGTH, b"expect: 100-continue", body=HIDDEN),
    "odd expectation": _post(LENGTH, b"expect: y 100-continue", body=HIDDEN),
}
ENCODINGS = {
    "with length": _post(LENGTH, CHUNKED, body=AFTER_LAST),
    "before length": _post(CHUNKED, LENGTH, body=AFTER_LAST),
    "unknown": _post(b"transfer-encoding: xchunked", LENGTH, body=HIDDEN),
    "chunked not last": _post(b"transfer-encoding: chunked, identity", body=AFTER_LAST),
    "identity": _post(b"transfer-encoding: identity", LENGTH, body=HIDDEN),
    "blank before colon": _post(b"transfer-encoding : chunked", LENGTH, body=AFTER_LAST),
    "folded": _post(b"transfer-encoding:\r\n chunked", LENGTH, body=AFTER_LAST),
    "vertical tab": _post(b"transfer-encoding: \x0bchunked", LENGTH, body=AFTER_LAST),
    "quoted": _post(b'transfer-encoding: "chunked"', LENGTH, body=AFTER_LAST),
    "NUL": _post(b"transfer-encoding: chunked\x00", LENGTH, body=AFTER_LAST),
    "hidden in another line": _post(b"x: y\rtransfer-encoding: chunked", LENGTH, body=AFTER_LAST),
    "after a bare line feed": _post(b"x: y\ntransfer-encoding: chunked", LENGTH, body=AFTER_LAST),
    "first line folded": _post(b" transfer-encoding: chunked", LENGTH, body=AFTER_LAST),
    "HTTP/1.0": _post(CHUNKED, LENGTH, body=AFTER_LAST, version=b"1.0"),
    "two lines": _post(CHUNKED, b"transfer-encoding: identity", body=AFTER_LAST),
}
CHUNKS = {
    "size with 0x": _post(CHUNKED, body=b"0x" + ONE_CHUNK),
    "size with plus": _post(CHUNKED, body=b"+" + ONE_CHUNK),
    "negative size": _post(CHUNKED, body=b"-1\r\n" + HIDDEN),
    "blank before size": _post(CHUNKED, body=b" " + ONE_CHUNK),
    "overflowing size": _post(CHUNKED, body=b"1" + b"0" * 16 + b"\r\n" + AFTER_LAST),
    "size ended by line feed": _post(CHUNKED, body=b"1\na\r\n" + AFTER_LAST),
    "no end after data": _post(CHUNKED, body=b"1\r\nab\r\n" + AFTER_LAST),
    "extension with line feed": _post(CHUNKED, body=b"1;a\nb\r\na\r\n" + AFTER_LAST),
    "no size": _post(CHUNKED, body=b"\r\n" + HIDDEN),
    "as body": _post(CHUNKED, body=ONE_CHUNK),
    "trailers": _post(CHUNKED, body=b"0\r\ncontent-length: 9\r\nhost: y\r\nauthorization: Bearer x\r\n\r\n"),
}
WISHES = {
    "websocket": _post(LENGTH, b"connection: upgrade", b"upgrade: websocket", body=HIDDEN),
    "h2c": _post(LENGTH, b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AA", body=HIDDEN),
    "chunked": _post(CHUNKED, b"connection: upgrade", b"upgrade: h2c", body=ONE_CHUNK),
    "padded": _post(
        b"content-length: %d" % (20_000 + len(HIDDEN)),
        b"connection: upgrade",
        b"upgrade: websocket",
        body=b"\r\n" * 10_000 + HIDDEN,
    ),
    "folded": _post(LENGTH, b"connection: upgrade", b"upgrade:\r\n h2c", body=HIDDEN),
    "CONNECT": _post(b"connection: upgrade", body=HIDDEN, line=b"CONNECT x:80"),
    "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
}
LINES = {
    "two hosts": _post(b"host: y", LENGTH, body=HIDDEN),
    "fragment": _post(LENGTH, body=HIDDEN, line=b"POST http://x/echo#/hidden"),
    "user information": _post(LENGTH, body=HIDDEN, line=b"POST http://y@x/echo"),
    "version 2": _post(LENGTH, body=HIDDEN, version=b"2.0"),
    "version 0.9": b"GET /echo\r\n" + HIDDEN,
    "blank in the target": _post(LENGTH, body=HIDDEN, line=b"POST /echo /hidden"),
    "bare line feeds": b"POST /echo HTTP/1.1\nhost: x\n" + LENGTH + b"\n\n" + HIDDEN,
    "control in a name": _post(b"x\x01: y", LENGTH, body=HIDDEN),
    "lower-case method": _post(LENGTH, body=HIDDEN, line=b"post /echo"),
}
SHAPES = {
    f"{group}, {name}": data
    for group, shapes in (
        ("length", LENGTHS),
        ("encoding", ENCODINGS),
        ("chunk", CHUNKS),
        ("wish", WISHES),
        ("line", LINES),
    )
    for name, data in shapes.items()
}
