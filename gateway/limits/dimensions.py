"""Tables of what limits count: one row per meter and one per dimension.

The Python counters, the store, the scripts, the wording and the admin API all read these tables. A new dimension over
what is metered already is a row here beside its limit in `LimitRule` and in the policy document; a new meter also has
its amounts in `claim.py`. Pure; knows neither counters nor stores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["requests", "tokens", "concurrency", "budget"]
Quantity = Literal["requests", "tokens", "tokens_in", "tokens_out", "cost_micro", "concurrent"]


@dataclass(frozen=True, slots=True)
class Meter:
    """One amount that every window counts. `name` is that of the amount in claims and settlements."""

    name: str
    used: str
    """Field of `Tally`: what was settled."""
    used_field: str
    """Field of the counter's hash in the store."""
    held: str | None = None
    """Field of `Tally`: what requests in flight claim. None: counted when granted and never given back, and only by
    rules with a limit of the meter's name."""
    held_field: str | None = None
    slot: int | str | None = None
    """Where a lease record keeps what it holds. Meters after the first have numbers since 4 and 5 are the names of
    counters: records of other versions are settled too. Give a new meter its name here."""
    known: bool = False
    """Whether the amount is known before the answer."""


REQUESTS = Meter("requests", "requests", "r", known=True)
PROMPT = Meter("prompt", "used_in", "ui", "held_in", "hi", slot=1, known=True)
OUTPUT = Meter("output", "used_out", "uo", "held_out", "ho", slot=2)
COST = Meter("cost", "used_cost", "uc", "held_cost", "hc", slot=3)
HELD = (PROMPT, OUTPUT, COST)
"""What requests in flight hold, and give back for what they used."""
METERS = (*HELD, REQUESTS)
FIELDS = (*(meter.held_field for meter in HELD if meter.held_field), *(meter.used_field for meter in METERS))
"""All fields of a counter in the store, in the order in which they are read."""
TALLY_FIELDS = (*(meter.held for meter in HELD if meter.held), *(meter.used for meter in METERS))
"""The same in `Tally`."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """Something a rule can limit: the sum of some meters in a window."""

    name: Quantity
    """The limit's field in `LimitRule`, and the quantity's name in the admin API."""
    meters: tuple[Meter, ...]
    kind: Kind
    """Of a refusal in a rate window; in longer ones it is a budget."""
    unit: str = ""
    """In sentences; the rule's currency where the dimension is money."""
    grows: Literal["", "tokens", "money"] = ""
    """Whether the answer adds to it, so that what is left caps the answer: by its length or by its price."""
    headroom: Literal["", "requests", "tokens"] = ""
    """The `x-ratelimit-*` headers in which it counts."""
    known: tuple[Meter, ...] = field(init=False, default=())
    """Meters whose amounts are known before the answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", tuple(meter for meter in self.meters if meter.known))

    @property
    def is_money(self) -> bool:
        return self.grows == "money"


WINDOWED = (
    Dimension("requests", (REQUESTS,), "requests", "requests", headroom="requests"),
    Dimension("tokens", (PROMPT, OUTPUT), "tokens", "tokens", grows="tokens", headroom="tokens"),
    Dimension("tokens_in", (PROMPT,), "tokens", "prompt tokens", headroom="tokens"),
    Dimension("tokens_out", (OUTPUT,), "tokens", "output tokens", grows="tokens", headroom="tokens"),
    Dimension("cost_micro", (COST,), "budget", grows="money"),
)
"""Counted per window, in the order in which refusals and clamps are found."""
CONCURRENT = Dimension("concurrent", (), "concurrency", "requests at once")
"""A gauge that no window ends. Refusals of it are found first."""
DIMENSIONS = (*WINDOWED, CONCURRENT)
BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}


def lua_meters() -> str:
    """For every script: `NAMES`, `FIELDS`, how many meters are `HELD`, and their `SLOTS` in a lease record."""
    slots = [meter.slot for meter in HELD]
    return _lua_locals(NAMES=[meter.name for meter in METERS], FIELDS=list(FIELDS), HELD=len(HELD), SLOTS=slots)


def lua_dimensions() -> str:
    """For the script that compares with limits: `DIMENSIONS`. What is left out is nil there."""
    rows = [
        {
            "name": dimension.name,
            "kind": dimension.kind,
            "grows": dimension.grows or None,
            "headroom": dimension.headroom or None,
            "meters": [METERS.index(meter) + 1 for meter in dimension.meters],
        }
        for dimension in WINDOWED
    ]
    return _lua_locals(DIMENSIONS=rows)


def _lua_locals(**values: object) -> str:
    return "".join(f"local {name} = {_lua(value)}\n" for name, value in values.items())


def _lua(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_lua(item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)
