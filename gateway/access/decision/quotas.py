"""The limits of the policy that apply to a request, each with the name of its counter. Pure; counts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.access.decision.compiled_policy import CompiledLimit, Snapshot
from gateway.access.decision.effective_subject import EffectiveSubject
from gateway.access.document.departments import folded
from gateway.access.document.model import COUNTS, SCOPE_FIELDS, Limit
from gateway.access.document.patterns import ModelSelector, compile_pattern
from gateway.flow.values import LimitRule, ModelCard, Principal

MAX_CACHED = 20_000
_NAMED = ("user", "department", "role", "tenant")


def limits_for(
    snapshot: Snapshot,
    principal: Principal,
    effective: EffectiveSubject,
    model: ModelCard | None,
    purpose: str | None = None,
) -> tuple[LimitRule, ...]:
    """In the order of the limits' ids. A limit per role gives one rule for each role held."""
    if purpose not in snapshot.limit_purposes:
        purpose = None
    case = (
        principal.tenant,
        effective.key,
        effective.charged_department,
        effective.roles,
        principal.kind,
        (principal.key_lineage or principal.credential_id) if principal.kind == "service" else None,
        None if model is None else model.id,
        purpose,
    )
    found = snapshot.limit_rules.get(case)
    if found is None:
        found = tuple(_resolve(snapshot, principal, effective, model, purpose))
        if len(snapshot.limit_rules) >= MAX_CACHED:
            snapshot.limit_rules.clear()
        snapshot.limit_rules[case] = found
    return found


def _resolve(
    snapshot: Snapshot, principal: Principal, effective: EffectiveSubject, model: ModelCard | None, purpose: str | None
) -> Iterator[LimitRule]:
    for limit in snapshot.limits:
        if not _applies(limit, principal, effective) or limit.purpose not in (None, purpose):
            continue
        if limit.models is not None and (model is None or not limit.models.matches(model)):
            continue
        for key in _counters(limit, principal, effective, model):
            yield LimitRule(scope=limit.kind, scope_key=key, **limit.quantities)


def _applies(limit: CompiledLimit, principal: Principal, effective: EffectiveSubject) -> bool:
    for name, value in limit.filters:
        if name == "role":
            if value not in effective.roles:
                return False
        elif value != _value(name, principal, effective):
            return False
    return True


def _value(name: str, principal: Principal, effective: EffectiveSubject) -> str | None:
    if name == "user":
        return effective.key
    if name == "tenant":
        return principal.tenant
    return None if effective.charged_department is None else folded(effective.charged_department)


def _counters(
    limit: CompiledLimit, principal: Principal, effective: EffectiveSubject, model: ModelCard | None
) -> tuple[str, ...]:
    """Counter names. Everything is counted within its tenant, but a model alone across tenants."""
    if len(limit.parts) > 1:
        named = [_counter(limit, part, principal, effective, model) for part in limit.parts]
        return ("|".join(name for name in named if name is not None),)
    if limit.kind == "role" and limit.each:
        return tuple(f"role:{_part(principal.tenant)}/{role}" for role in sorted(effective.roles))
    name = _counter(limit, limit.kind, principal, effective, model)
    return () if name is None else (name,)


def _counter(
    limit: CompiledLimit, kind: str, principal: Principal, effective: EffectiveSubject, model: ModelCard | None
) -> str | None:
    tenant = _part(principal.tenant)
    match kind:
        case "user":
            return f"user:{tenant}/{principal.issuer}/{_part(principal.subject)}"
        case "department":
            department = effective.charged_department
            return None if department is None else f"department:{tenant}/{_part(folded(department))}"
        case "role":
            return f"role:{tenant}/{dict(limit.filters)['role']}"
        case "tenant":
            return f"tenant:{tenant}"
        case "purpose":
            return f"purpose:{tenant}/{_part(limit.purpose or '')}"
        case "key":
            # Only a service's credential is a lasting key; a person's token id changes with every token. A key that
            # replaces another one goes on with its budget, and both share it while they overlap.
            if principal.kind == "service" and principal.credential_id is not None:
                return f"key:{tenant}/{_part(principal.key_lineage or principal.credential_id)}"
            return None
        case _:
            if not limit.each:
                return f"model:{limit.model}"
            return None if model is None or model.virtual else f"model:{model.id}"


def _part(text: str) -> str:
    """One component of a counter's name: with `/` escaped, no two (tenant, issuer, subject) share a name."""
    return text.replace("%", "%25").replace("/", "%2F") if "/" in text or "%" in text else text


def compile_limit(limit: Limit) -> CompiledLimit:
    scope = limit.scope
    filters = tuple(
        (name, folded(value) if name == "department" else value)
        for name in _NAMED
        if (value := getattr(scope, name)) is not None
    )
    named = tuple(name for name in SCOPE_FIELDS if getattr(scope, name) is not None)
    return CompiledLimit(
        kind=scope.each or named[0],
        filters=filters,
        model=scope.model,
        models=_selector(scope.model),
        each=scope.each is not None,
        parts=() if scope.each is not None else named,
        purpose=scope.purpose,
        quantities=dict(_quantities(limit)),
    )


def _selector(pattern: str | None) -> ModelSelector | None:
    if pattern is None:
        return None
    compiled = compile_pattern(pattern)
    exact = frozenset[str]() if compiled.wild else frozenset({pattern})
    return ModelSelector(False, exact, (compiled,) if compiled.wild else (), (), None)


def _quantities(limit: Limit) -> Iterator[tuple[str, Any]]:
    cost = limit.cost_eur if limit.cost_eur is not None else limit.cost
    yield "id", limit.id
    yield "window", limit.window if limit.seconds is None else "minute"
    yield "window_s", limit.seconds
    yield "cost_micro", None if cost is None else round(cost * 1_000_000)
    yield "warn_at", tuple(sorted(limit.warn_at))
    for name in ("tz", *COUNTS, "currency"):
        yield name, getattr(limit, name)
    yield "on_store_error", limit.on_store_error
    yield "sliding", limit.sliding
