"""Checks a change against its author: nobody grants beyond their own rights, no change locks everybody out. Pure.

Administrative rights: an author may widen only those that they hold. Model use: whoever may write the policy grants it
to others, but neither to themselves nor to an account of theirs, in no way at all (`own_rights`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.access.decision.compiled_policy import CompiledRule, Snapshot
from gateway.access.decision.evaluator import evaluate
from gateway.access.document.vocabulary import ADMIN_ACTIONS
from gateway.access.history.own_rights import first_gain
from gateway.errors import Objection
from gateway.flow.context import RequestContext
from gateway.flow.values import Principal

Entry = tuple[object, ...]


def first_objection(
    before: Snapshot,
    after: Snapshot,
    author: Principal,
    context: RequestContext,
    *,
    four_eyes: bool = False,
    owned: Sequence[Principal] = (),
    seen: Sequence[Principal] = (),
) -> Objection | None:
    """`owned` are the author's service accounts, `seen` is what the author was lately known as. With four eyes a second
    human agrees to what the author gains."""
    return (
        _beyond_own_rights(before, after, author, context)
        or (None if four_eyes else widens_itself(before, after, author, context, owned, seen))
        or _locks_out(before, after, author, context, four_eyes)
    )


def _beyond_own_rights(
    before: Snapshot, after: Snapshot, author: Principal, context: RequestContext
) -> Objection | None:
    for action in ADMIN_ACTIONS:
        if evaluate(before, author, action, None, context).allowed:
            continue
        granted = _surface(after, action, context, deny=False) - _surface(before, action, context, deny=False)
        freed = _surface(before, action, context, deny=True) - _surface(after, action, context, deny=True)
        if granted or freed:
            return Objection(
                "cannot_grant_beyond_own_rights",
                f"This change would widen `{action}`, which you do not hold yourself.",
                "ask somebody who holds it to make the change",
            )
    return None


def _surface(snapshot: Snapshot, action: str, context: RequestContext, *, deny: bool) -> frozenset[Entry]:
    """Every way to come by (or be refused) an administrative action: who, and under which conditions."""
    entries: set[Entry] = set()
    for rule in snapshot.rules:
        if rule.deny is not deny or rule.models is not None:
            continue
        if rule.actions is not None and action not in rule.actions:
            continue
        terms = (rule.types, rule.departments, rule.tenants, rule.condition)
        entries.update((*who, *terms) for who in _reached(snapshot, rule, context))
    return frozenset(entries)


def _reached(snapshot: Snapshot, rule: CompiledRule, context: RequestContext) -> Iterator[Entry]:
    if rule.everyone:
        yield ("everyone",)
    for principal in rule.principals:
        yield ("principal", principal)
    roles = {role for role, closure in snapshot.closures.items() if closure & rule.roles}
    for role in roles:
        yield ("role", role)
    for (provider, claim, value), given in snapshot.mappings.items():
        if given & roles:
            yield ("mapping", provider, claim, value)
    for principal, bindings in snapshot.bindings.items():
        for binding in bindings:
            if binding.roles & roles and (binding.expires is None or context.received_at < binding.expires):
                yield ("binding", principal, binding.expires)


def widens_itself(
    before: Snapshot,
    after: Snapshot,
    author: Principal,
    context: RequestContext,
    owned: Sequence[Principal],
    seen: Sequence[Principal],
) -> Objection | None:
    gain = first_gain(before, after, author, owned, context, seen)
    if gain is None:
        return None
    return Objection(
        "cannot_grant_beyond_own_rights",
        gain.sentence,
        "ask an administrator who does not gain by it; with `access.four_eyes` a second person can agree to it",
    )


def _locks_out(
    before: Snapshot, after: Snapshot, author: Principal, context: RequestContext, four_eyes: bool
) -> Objection | None:
    needed = ("policy.read", "policy.write", *(("policy.approve",) if four_eyes else ()))
    for action in needed:
        if not any(_holds_for_good(after, rule, action) for rule in after.rules):
            return Objection(
                "would_lock_out",
                f"After this change nobody could be sure to hold `{action}` any more.",
                "keep one rule without conditions that grants it to a role or a person",
            )
    for action in ("policy.read", "policy.write"):
        if (
            evaluate(before, author, action, None, context).allowed
            and not evaluate(after, author, action, None, context).allowed
        ):
            return Objection(
                "would_lock_out",
                f"This change would take `{action}` from yourself.",
                "let another administrator make it, so that one is known to remain",
            )
    return None


def _holds_for_good(snapshot: Snapshot, rule: CompiledRule, action: str) -> bool:
    """An unconditional grant to people, by role or by name, that no unconditional deny takes back."""
    if rule.types is not None and "user" not in rule.types:
        return False
    if rule.deny or rule.condition is not None or rule.actions is None or action not in rule.actions:
        return False
    filters = (
        snapshot.by_action.get(action)
        & snapshot.modelless
        & snapshot.by_type.get("user")
        & snapshot.by_department.get(min(rule.departments) if rule.departments else None)
        & snapshot.by_tenant.get(min(rule.tenants) if rule.tenants else None)
        & snapshot.denies
        & ~snapshot.conditional
    )
    for role in rule.roles:
        named = snapshot.everyone
        for inherited in snapshot.closures[role]:
            named |= snapshot.by_role.get(inherited, 0)
        if not named & filters:
            return True
    return any(not (snapshot.everyone | snapshot.by_principal.get(p, 0)) & filters for p in rule.principals)
