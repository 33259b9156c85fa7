"""`grow`: a frozen slotted value with some fields changed. `dataclasses.replace`, at a third of its price.

The exchange grows about ten times per request; with `replace` that alone was a tenth of a request's time.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")
_slots: dict[type[Any], tuple[tuple[str, Any, Any], ...]] = {}


def grow(value: T, **changes: Any) -> T:
    """For slotted dataclasses without `__post_init__`. Raises `TypeError` for a field that does not exist."""
    kind = type(value)
    slots = _slots.get(kind)
    if slots is None:
        slots = _slots[kind] = tuple(
            (field.name, descriptor.__get__, descriptor.__set__)
            for field in fields(value)  # type: ignore[arg-type]
            for descriptor in (kind.__dict__[field.name],)
        )
    new = object.__new__(kind)
    left = len(changes)
    for name, read, write in slots:
        if left and name in changes:
            write(new, changes[name])
            left -= 1
        else:
            write(new, read(value))
    if left:
        raise TypeError(f"{kind.__name__} has no field among {sorted(changes)} that grew")
    return new
