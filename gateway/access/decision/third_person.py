"""Reasons of decisions are written to the caller; an administrator reads them about somebody else. Pure."""

from __future__ import annotations

_TURNED = (
    ("no rule grants you ", "no rule grants "),
    ("your clearance", "the caller's clearance"),
    ("your roles", "the caller's roles"),
    ("your organization's", "the organization's"),
)


def about_others(reason: str) -> str:
    """The same reason without `you`. The public sentence of a rule is left as its author wrote it."""
    for second, third in _TURNED:
        if reason.startswith(second) or (second.startswith("your clearance") and second in reason):
            return reason.replace(second, third, 1)
    return reason
