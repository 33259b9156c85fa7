"""JSON as signed documents must be written: UTF-8, no repeated names, no NaN, bounded depth, clean strings.

Owns the one parser used for token headers, claims, key sets and discovery documents. Knows nothing of what they mean.
"""

from __future__ import annotations

from typing import Any

from gateway.documents.strict_json import Flaw, check_values, strict_decoder

MAX_SAFE_INTEGER = 2**53


class StrictJsonError(ValueError):
    """The text is not JSON that two parsers would read alike. `str()` is log-safe: it never quotes the input."""


def _refused(flaw: Flaw, _: str) -> StrictJsonError:
    return StrictJsonError(flaw.value)


_DECODER = strict_decoder(_refused)


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
        raise _refused(Flaw.DEPTH, "") from None
    except ValueError:
        raise StrictJsonError("not JSON") from None
    if not isinstance(value, dict):
        raise StrictJsonError("not a JSON object")
    check_values(value, _refused, _check_text, max_depth=max_depth)
    return value


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise StrictJsonError("a string holds a NUL character")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise StrictJsonError("a string holds half of a surrogate pair") from None
