"""The caller as the policy sees it: effective roles, department and names of counters. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.document.departments import is_declared
from gateway.flow.values import Principal


@dataclass(frozen=True, slots=True)
class EffectiveSubject:
    """`charged_department` is the token's own, else the one that a held role states, else the policy's default.

    Where the policy declares its departments, one that is not declared gives way to the default, if there is one.
    """

    key: str
    """`<issuer>#<subject>`"""
    roles: frozenset[str]
    charged_department: str | None


@dataclass(frozen=True, slots=True)
class RoleOrigin:
    """Why a role is held: `token`, `mapping:<claim>=<value>`, `binding:<id>` or `inherited:<role>`."""

    role: str
    origin: str


def principal_key(principal: Principal) -> str:
    return f"{principal.issuer}#{principal.subject}"


def effective_subject(snapshot: Snapshot, principal: Principal, at: datetime) -> EffectiveSubject:
    key = principal_key(principal)
    roles: set[str] = set()
    for role in principal.roles:
        roles |= snapshot.closures.get(role, frozenset())
    if snapshot.mappings or snapshot.bindings:
        for direct in _given(snapshot, principal, key, at):
            roles |= snapshot.closures.get(direct.role, frozenset())
    return EffectiveSubject(key, frozenset(roles), _charged(snapshot, principal.department, roles))


def role_origins(snapshot: Snapshot, principal: Principal, at: datetime) -> tuple[RoleOrigin, ...]:
    """Every effective role with its reason, for explanations."""
    direct = [RoleOrigin(role, "token") for role in sorted(principal.roles) if role in snapshot.closures]
    direct.extend(_given(snapshot, principal, principal_key(principal), at))
    inherited = [
        RoleOrigin(parent, f"inherited:{found.role}")
        for found in direct
        for parent in sorted(snapshot.closures[found.role] - {found.role})
    ]
    return tuple(dict.fromkeys([*direct, *inherited]))


def break_glass_of(snapshot: Snapshot, principal: Principal, at: datetime) -> tuple[str, ...]:
    """Ids of the emergency bindings that this principal holds roles by at that time."""
    held = snapshot.bindings.get(principal_key(principal), ())
    return tuple(sorted({one.id for one in held if one.break_glass and one.expires is not None and at < one.expires}))


def _given(snapshot: Snapshot, principal: Principal, key: str, at: datetime) -> Iterator[RoleOrigin]:
    """Roles by mapping and by binding; an expired binding gives nothing."""
    if principal.provider is not None and snapshot.mappings:
        claims = (("roles", principal.roles), ("groups", principal.groups), ("scopes", principal.scopes))
        for claim, values in claims:
            for value in sorted(values):
                for role in sorted(snapshot.mappings.get((principal.provider, claim, value), ())):
                    yield RoleOrigin(role, f"mapping:{claim}={value}")
    for binding in snapshot.bindings.get(key, ()):
        if binding.expires is None or at < binding.expires:
            for role in sorted(binding.roles):
                yield RoleOrigin(role, f"binding:{binding.id}")


def _charged(snapshot: Snapshot, stated: str | None, roles: set[str]) -> str | None:
    name = stated or _default_department(snapshot, roles)
    default = snapshot.document.settings.default_department
    if default is not None and (name is None or not is_declared(snapshot.document, name)):
        return default
    return name


def _default_department(snapshot: Snapshot, roles: set[str]) -> str | None:
    stated = {snapshot.document.roles[role].department for role in roles} - {None}
    return min((name for name in stated if name is not None), default=None)
