"""Which limits of the policy a request falls under, with the counter of each already named. Pure; counts nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.access.document import LimitScope
from gateway.access.holder import Holder
from gateway.access.snapshot import CompiledLimit, Snapshot
from gateway.flow.values import LimitRule, ModelCard, Principal

MAX_CACHED = 20_000


def limits_for(
    snapshot: Snapshot, principal: Principal, holder: Holder, model: ModelCard | None
) -> tuple[LimitRule, ...]:
    """In the order of the limits' ids. A limit per role gives one rule for each role held."""
    found: list[LimitRule] = []
    for number, limit in enumerate(snapshot.limits):
        if not _applies(limit, principal, holder, model):
            continue
        for scope, key in _counters(limit.spec.scope, principal, holder, model):
            rule = snapshot.limit_rules.get((number, key))
            if rule is None:
                rule = LimitRule(scope=scope, scope_key=key, **limit.quantities)
                if len(snapshot.limit_rules) >= MAX_CACHED:
                    snapshot.limit_rules.clear()
                snapshot.limit_rules[number, key] = rule
            found.append(rule)
    return tuple(found)


def _applies(limit: CompiledLimit, principal: Principal, holder: Holder, model: ModelCard | None) -> bool:
    scope = limit.spec.scope
    if scope.user is not None and scope.user != holder.key:
        return False
    if scope.department is not None and scope.department != holder.charged_department:
        return False
    if scope.role is not None and scope.role not in holder.roles:
        return False
    if scope.tenant is not None and scope.tenant != principal.tenant:
        return False
    return limit.models is None or (model is not None and limit.models.matches(model))


def _counters(
    scope: LimitScope, principal: Principal, holder: Holder, model: ModelCard | None
) -> Iterator[tuple[str, str]]:
    """(scope, counter name). A department, role or user is counted within its tenant; a model across tenants."""
    kind: str = scope.each or next(
        name for name in ("user", "department", "role", "tenant", "model") if _named(scope, name)
    )
    tenant = _part(principal.tenant)
    if kind == "user":
        yield kind, f"user:{tenant}/{principal.issuer}/{_part(principal.subject)}"
    elif kind == "key":
        if principal.kind == "service" and principal.credential_id is not None:
            yield kind, f"key:{tenant}/{_part(principal.credential_id)}"
    elif kind == "department":
        if holder.charged_department is not None:
            yield kind, f"department:{tenant}/{_part(holder.charged_department)}"
    elif kind == "role":
        for role in sorted(holder.roles) if scope.role is None else (scope.role,):
            yield kind, f"role:{tenant}/{role}"
    elif kind == "tenant":
        yield kind, f"tenant:{tenant}"
    elif scope.model is not None:
        yield kind, f"model:{scope.model}"
    elif model is not None and not model.virtual:
        yield kind, f"model:{model.id}"


def _named(scope: LimitScope, name: str) -> bool:
    return getattr(scope, name) is not None


def _part(text: str) -> str:
    """One component of a counter's name: with `/` escaped, no two (tenant, issuer, subject) share a name."""
    return text.replace("%", "%25").replace("/", "%2F") if "/" in text or "%" in text else text
