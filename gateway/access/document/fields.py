"""Field types of a policy document: each checks one value and says what it expected. Knows no structure."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from datetime import datetime
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, StringConstraints

T = TypeVar("T")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SECONDS = re.compile(r"([1-9][0-9]{0,6})s\Z")


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"found `{name}`; expected an IANA time zone such as `America/Bogota`") from None
    return name


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"found `{text}`; expected a network such as `10.0.0.0/8` ({error})") from None
    return text


def check_days(text: str) -> str:
    first, dash, last = text.partition("-")
    if first not in DAYS or (dash and last not in DAYS):
        raise ValueError(f"found `{text}`; expected a day or a range such as `mon` or `mon-fri`")
    return text


def _principal(text: str) -> str:
    issuer, mark, subject = text.partition("#")
    if not (mark and issuer and subject):
        raise ValueError(f"found `{text}`; expected `<issuer>#<subject>`, both as the token states them")
    return text


def _model_pattern(text: str) -> str:
    if unicodedata.normalize("NFC", text) != text:
        raise ValueError(f"found `{text}`, which is not in Unicode normal form NFC; type it again")
    for segment in text.split("/"):
        if not segment or "*" in segment[:-1]:
            raise ValueError(
                f"found `{text}`; expected `*` only as a whole segment or at the end of one, as in `acme/llama-*`"
            )
    return text


def _window(text: str) -> str:
    if text not in ("minute", "day", "month") and not SECONDS.match(text):
        raise ValueError(f"found `{text}`; expected `minute`, `day`, `month` or seconds such as `60s`")
    return text


def _instant(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"found `{text}`; expected a time such as `2026-12-31T23:59:00Z`") from None
    if moment.tzinfo is None:
        raise ValueError(f"found `{text}` without a zone; end it with `Z` or an offset")
    return text


Name = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
Text = Annotated[str, StringConstraints(max_length=2000)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Zone = Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone)]
Network = Annotated[str, StringConstraints(max_length=64), AfterValidator(_network)]
PrincipalName = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_principal)]
ModelPattern = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_model_pattern)]
ClockTime = Annotated[str, StringConstraints(max_length=5, pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$")]
Instant = Annotated[str, StringConstraints(max_length=64), AfterValidator(_instant)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Days = Annotated[str, StringConstraints(max_length=7), AfterValidator(check_days)]
Window = Annotated[str, StringConstraints(max_length=16), AfterValidator(_window)]
MAX_ENTRIES = 10_000
"""Entries of one list or map of a document. Every wrong one is told, so there must be an end to them."""
Many = Annotated[tuple[T, ...], Field(max_length=MAX_ENTRIES, fail_fast=True)]
