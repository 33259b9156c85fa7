"""The `when` of a rule, compiled: does this situation satisfy it? Pure; knows no roles and no models.

A test answers True or False, or raises `Undecidable` when the situation does not say. The evaluator turns that into
"no match" for an allow rule and into a match for a deny rule, so a gap in the evidence can never open a door.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from gateway.access.document.fields import DAYS
from gateway.access.document.model import TimeTest, When
from gateway.access.document.vocabulary import DATA_CLASSES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PURPOSE_MISSING = "purpose is not stated"
_RANK = {name: rank for rank, name in enumerate(DATA_CLASSES)}


Test = Callable[["Condition", "Situation"], bool]


class Undecidable(Exception):
    """The situation lacks, or garbles, what a condition asks about."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that conditions may read. `at` is aware UTC."""

    at: datetime
    data_class: str | None
    purpose: str | None
    source: Address | None
    """None when the address is unknown or not an address."""
    client_id: str | None


@lru_cache(maxsize=4096)
def read_address(text: str | None) -> Address | None:
    """The source address; one that came in as IPv6-mapped IPv4 counts as IPv4."""
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@dataclass(frozen=True, slots=True)
class TimeWindow:
    zone: ZoneInfo
    days: frozenset[int]
    """0 is Monday."""
    start_minute: int
    end_minute: int

    def contains(self, at: datetime) -> bool:
        """On the wall clock of the zone, so a window keeps its hours through daylight-saving changes."""
        local = at.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        if self.start_minute < self.end_minute:
            return local.weekday() in self.days and self.start_minute <= minute < self.end_minute
        if minute >= self.start_minute:
            return local.weekday() in self.days
        return minute < self.end_minute and (local.date() - timedelta(days=1)).weekday() in self.days


@dataclass(frozen=True, slots=True)
class Condition:
    data_class_min: int | None = None
    data_class_max: int | None = None
    purposes: frozenset[str] | None = None
    excluded_purposes: frozenset[str] | None = None
    window: TimeWindow | None = None
    networks: tuple[Network, ...] | None = None
    clients: frozenset[str] | None = None
    tests: tuple[tuple[str, Test], ...] = ()
    """The tests that this condition makes, cheapest first."""

    def first_failure(self, situation: Situation) -> str | None:
        """Name of the first test that does not hold, or None when all hold. Raises `Undecidable`.

        A test that is plainly false settles the question even when another one cannot be decided.
        """
        doubt: Undecidable | None = None
        for name, test in self.tests:
            try:
                if not test(self, situation):
                    return name
            except Undecidable as error:
                doubt = doubt or error
        if doubt is not None:
            raise doubt
        return None


def data_class_rank(name: str) -> int:
    try:
        return _RANK[name]
    except KeyError:
        raise Undecidable("dataClass is not one of the known classes") from None


def _data_class(condition: Condition, situation: Situation) -> bool:
    if situation.data_class is None:
        raise Undecidable("dataClass is unknown")
    rank = data_class_rank(situation.data_class)
    low = condition.data_class_min is None or rank >= condition.data_class_min
    return low and (condition.data_class_max is None or rank <= condition.data_class_max)


def _purpose(condition: Condition, situation: Situation) -> bool:
    if situation.purpose is None:
        raise Undecidable(PURPOSE_MISSING)
    if condition.purposes is not None:
        return situation.purpose in condition.purposes
    return situation.purpose not in (condition.excluded_purposes or ())


def _time(condition: Condition, situation: Situation) -> bool:
    return condition.window is None or condition.window.contains(situation.at)


def _source(condition: Condition, situation: Situation) -> bool:
    if situation.source is None:
        raise Undecidable("source address is unknown")
    return any(situation.source in network for network in condition.networks or ())


def _client(condition: Condition, situation: Situation) -> bool:
    """A token without a client is a verified fact, not a gap: it is none of the listed clients."""
    return condition.clients is None or situation.client_id in condition.clients


def compile_condition(when: When | None) -> Condition | None:
    """None for a `when` that asks nothing."""
    if when is None:
        return None
    data_class, purpose = when.data_class, when.purpose
    written: tuple[tuple[str, Test, object], ...] = (
        ("clients", _client, when.clients),
        ("dataClass", _data_class, data_class),
        ("purpose", _purpose, purpose),
        ("time", _time, when.time),
        ("sourceCidr", _source, when.source_cidr),
    )
    tests = tuple((name, test) for name, test, part in written if part is not None)
    if not tests:
        return None
    return Condition(
        data_class_min=_RANK[data_class.min] if data_class and data_class.min else None,
        data_class_max=_RANK[data_class.max] if data_class and data_class.max else None,
        purposes=frozenset(purpose.one_of) if purpose and purpose.one_of else None,
        excluded_purposes=frozenset(purpose.none_of) if purpose and purpose.none_of else None,
        window=_compile_window(when.time),
        networks=tuple(ipaddress.ip_network(text) for text in when.source_cidr) if when.source_cidr else None,
        clients=frozenset(when.clients) if when.clients else None,
        tests=tests,
    )


def _compile_window(test: TimeTest | None) -> TimeWindow | None:
    if test is None:
        return None
    days: set[int] = set()
    for text in test.days:
        first, dash, last = text.partition("-")
        start = DAYS.index(first)
        length = (DAYS.index(last) - start) % 7 + 1 if dash else 1
        days.update((start + step) % 7 for step in range(length))
    return TimeWindow(ZoneInfo(test.tz), frozenset(days), _minutes(test.start), _minutes(test.end))


def _minutes(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])
