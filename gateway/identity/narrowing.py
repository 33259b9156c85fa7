"""Checks the rights that a caller gives to a service account: never more than it holds itself. Pure.

Owns the comparison of rights: roles, models, clearance, department. Knows no storage; what a caller holds beyond the
roles in its token (inherited, bound by policy) is told to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import Objection
from gateway.flow.values import Principal
from gateway.identity.claims import CLEARANCES


@dataclass(frozen=True, slots=True)
class Rights:
    """The upper bound of a service account's or key's rights. `models` None: no limit of its own."""

    roles: frozenset[str]
    models: tuple[str, ...] | None
    clearance: str | None
    department: str | None


def rights_of(caller: Principal, held_roles: Iterable[str]) -> Rights:
    return Rights(
        roles=caller.roles | frozenset(held_roles),
        models=caller.narrowed_models,
        clearance=caller.clearance,
        department=caller.department,
    )


def first_objection(caller: Principal, own: Rights, asked: Rights) -> Objection | None:
    """None when `asked` is within `own` and `caller` is somebody who signed in."""
    if caller.kind != "user":
        return Objection(
            "interactive_credential_required",
            "Service accounts and their keys are managed by people who signed in, not by another key.",
            "send a token of your identity provider",
        )
    extra = asked.roles - own.roles
    if extra:
        return _beyond("roles", f"You cannot give the role `{min(extra)}`, which you do not hold yourself.")
    if own.models is not None and (asked.models is None or not set(asked.models) <= set(own.models)):
        return _beyond("models", "You cannot give models that you may not use yourself.")
    if _rank(asked.clearance) > _rank(own.clearance):
        return _beyond("clearance", "You cannot give a clearance above your own.")
    if asked.department != own.department:
        return _beyond("department", "A service account belongs to the department of the person who makes it.")
    return None


def within(outer: Rights, inner_roles: frozenset[str] | None, inner_models: tuple[str, ...] | None) -> Objection | None:
    """Check that a key stays within its account. None in either leaves the account's."""
    if inner_roles is not None and inner_roles - outer.roles:
        return _beyond("roles", "The service account does not have that role.")
    if inner_models is not None and outer.models is not None and not set(inner_models) <= set(outer.models):
        return _beyond("models", "The service account may not use that model.")
    return None


def _rank(clearance: str | None) -> int:
    """No clearance is the lowest there is."""
    return 0 if clearance is None else CLEARANCES.index(clearance)


def _beyond(param: str, message: str) -> Objection:
    return Objection(
        "cannot_grant_beyond_own_rights",
        message,
        "ask somebody who holds it to make the change",
        param,
    )
