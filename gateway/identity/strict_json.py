"""JSON as signed documents must be written: UTF-8, no repeated names, no NaN, bounded depth, clean strings.

Owns the one parser used for token headers, claims, key sets and discovery documents. Knows nothing of what they mean.
"""

from __future__ import annotations

from typing import Any

from gateway.documents.strict_json import strict_decoder

MAX_SAFE_INTEGER = 2**53


class StrictJsonError(ValueError):
    """The text is not JSON that two parsers would read alike. `str()` is log-safe: it never quotes the input."""


_DECODER = strict_decoder(lambda flaw, _: StrictJsonError(flaw.value))


def parse_object(raw: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parse one JSON object of at most `max_depth` nested containers (the object itself counts as one).

    Refuses byte order marks, UTF-16, repeated names, numbers that overflow, NUL and lone surrogates in any string.
    Raises `StrictJsonError` and nothing else, whatever the bytes.
    """
    try:
        text = raw.decode("utf-8", errors="strict")
    except UnicodeDecodeError:
        raise StrictJsonError("not UTF-8") from None
    try:
        value = _DECODER.decode(text)
    except StrictJsonError:
        raise
    except RecursionError:
        raise StrictJsonError("nested too deeply") from None
    except ValueError:
        raise StrictJsonError("not JSON") from None
    if not isinstance(value, dict):
        raise StrictJsonError("not a JSON object")
    _check(value, max_depth)
    return value


def _check(value: object, depth_left: int) -> None:
    """Walk containers and strings. Recursion is bounded by `depth_left`."""
    if isinstance(value, str):
        if "\x00" in value:
            raise StrictJsonError("a string holds a NUL character")
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise StrictJsonError("a string holds half of a surrogate pair") from None
    elif isinstance(value, dict):
        if depth_left == 0:
            raise StrictJsonError("nested too deeply")
        for name, item in value.items():
            _check(name, depth_left)
            _check(item, depth_left - 1)
    elif isinstance(value, list):
        if depth_left == 0:
            raise StrictJsonError("nested too deeply")
        for item in value:
            _check(item, depth_left - 1)
