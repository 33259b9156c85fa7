"""The decision: (snapshot, principal, action, model, context) -> `Decision`. Pure, and the only place that decides.

Default deny; any matching deny wins; the order of rules means nothing; a deny rule that cannot be decided denies, an
allow rule that cannot be decided does not allow. Enforcement, explanation, tests and simulation all call `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.access.decision.compiled_policy import RuleOutcome, Snapshot
from gateway.access.decision.compiler import model_mask
from gateway.access.decision.effective_subject import EffectiveSubject, effective_subject
from gateway.access.decision.quotas import limits_for
from gateway.access.document.conditions import PURPOSE_MISSING, Situation, Undecidable, data_class_rank, read_address
from gateway.access.document.departments import folded, is_declared
from gateway.access.document.model import ObligationSpec
from gateway.access.document.vocabulary import (
    CACHED_TOKENS_ORDER,
    GUARDRAIL_ORDER,
    IMPLIED,
    LOCALITY_LABEL,
    LOGGING_ORDER,
    NAMED_TYPES_ONLY,
    PREFIX_CACHE_ORDER,
    REDACTION_ORDER,
    REPETITION_GUARD_ORDER,
    SIGNED_IN_ONLY,
    TOOLS_ORDER,
)
from gateway.flow.context import RequestContext
from gateway.flow.values import Decision, Effect, ModelCard, Obligations, Principal

MAX_SETTLED = 4096
GRANTED = "permitted by policy"
REFUSED = "your organization's policy refuses this"
UNMET = {
    "clients": "not from this application",
    "dataClass": "not for this data class",
    "purpose": "not for this purpose",
    "time": "not at this time",
    "sourceCidr": "not from this address",
}
"""A condition that does not hold, as the caller reads it."""
STATE_PURPOSE = "state what it is for in the header `x-esclusa-purpose`"


@dataclass(frozen=True, slots=True)
class Match:
    """Rules that apply to a request, as a bit mask over the snapshot's rules; `undecided` are part of it.

    `unmet` are those whose conditions alone keep them from applying.
    """

    effective: EffectiveSubject
    rules: int
    undecided: int = 0
    unmet: int = 0


def evaluate(
    snapshot: Snapshot, principal: Principal, action: str, model: ModelCard | None, context: RequestContext
) -> Decision:
    """Never raises for a "no". Conditions see the time at which the request was received."""
    if (others := IMPLIED.get(action)) is not None:
        return _implied(snapshot, principal, others, model, context)
    guard = _builtin_refusal(snapshot, principal, action, model, context)
    if guard is not None:
        return _refuse(snapshot, model, guard[0], guard[1], ())
    match = match_rules(snapshot, principal, action, model, context)
    unassigned = None if model is None else _department_refusal(snapshot, match.effective)
    if unassigned is not None:
        return _refuse(snapshot, model, "builtin:department", unassigned, ())
    settled = _settle(snapshot, match.rules)
    if settled.denied_by is not None:
        written = settled.denied_by.reason
        refused = _refuse(snapshot, model, settled.denied_by.id, written or REFUSED, settled.matched)
        return replace(refused, fixed_reason=False) if written else refused
    if settled.allowed_by is None:
        unmet = _unmet(snapshot, match.unmet & ~snapshot.denies, principal, context)
        refused = _refuse(snapshot, model, None, _nothing_grants(action, model, unmet), settled.matched)
        return replace(refused, hint=STATE_PURPOSE) if PURPOSE_MISSING in unmet else refused
    locality = _locality_refusal(settled.localities, model)
    if locality is not None:
        return _refuse(snapshot, model, "builtin:locality", locality, settled.matched)
    return Decision(
        effect=Effect.ALLOW,
        reason=GRANTED,
        rule_id=settled.allowed_by.id,
        policy_version=snapshot.version,
        policy_sha256=snapshot.sha256,
        matched=settled.matched,
        obligations=settled.obligations,
        default_data_class=snapshot.document.settings.default_data_class,
        limits=limits_for(snapshot, principal, match.effective, model, context.purpose),
        fixed_reason=True,
        named_words=snapshot.named_words,
    )


def _implied(
    snapshot: Snapshot, principal: Principal, others: Sequence[str], model: ModelCard | None, context: RequestContext
) -> Decision:
    """The first of the other actions that is allowed, or the refusal of the first."""
    refused: Decision | None = None
    for other in others:
        decision = evaluate(snapshot, principal, other, model, context)
        if decision.allowed:
            return decision
        refused = refused or decision
    if refused is None:
        raise ValueError("an action that nothing implies")
    return refused


DIMENSIONS = ("subjects", "actions", "models", "types", "departments", "tenants")


def match_rules(
    snapshot: Snapshot, principal: Principal, action: str, model: ModelCard | None, context: RequestContext
) -> Match:
    effective = effective_subject(snapshot, principal, context.received_at)
    subjects, actions, models, types, departments, tenants = rule_masks(snapshot, principal, effective, action, model)
    candidates = subjects & actions & models & types & departments & tenants
    conditional = candidates & snapshot.conditional
    if not conditional:
        return Match(effective, candidates)
    held, undecided = _decide_conditions(snapshot, conditional, situation_of(snapshot, principal, context))
    return Match(effective, (candidates ^ conditional) | held, undecided, conditional & ~held)


def rule_masks(
    snapshot: Snapshot, principal: Principal, effective: EffectiveSubject, action: str, model: ModelCard | None
) -> tuple[int, int, int, int, int, int]:
    """For each of `DIMENSIONS`, the rules that the request satisfies in it."""
    subjects = snapshot.everyone | snapshot.by_principal.get(effective.key, 0)
    for role in effective.roles:
        subjects |= snapshot.by_role.get(role, 0)
    return (
        subjects,
        snapshot.by_action.get(action),
        _rules_on(snapshot, model),
        _rules_for_type(snapshot, principal, action),
        snapshot.by_department.get(None if principal.department is None else folded(principal.department)),
        snapshot.by_tenant.get(principal.tenant),
    )


def _rules_for_type(snapshot: Snapshot, principal: Principal, action: str) -> int:
    if principal.kind == "user" or action not in NAMED_TYPES_ONLY:
        return snapshot.by_type.get(principal.kind)
    return snapshot.by_type.named.get(principal.kind, 0) | (snapshot.by_type.rest & snapshot.denies)


def situation_of(snapshot: Snapshot, principal: Principal, context: RequestContext) -> Situation:
    return Situation(
        at=context.received_at,
        data_class=context.data_class or snapshot.document.settings.default_data_class,
        purpose=context.purpose,
        source=read_address(context.client.ip),
        client_id=principal.client_id,
    )


def _rules_on(snapshot: Snapshot, model: ModelCard | None) -> int:
    if model is None:
        return snapshot.modelless
    listed = snapshot.catalog.get(model.id)
    if listed is not None and (listed is model or listed.labels == model.labels):
        return snapshot.by_model[model.id]
    return model_mask(snapshot.rules, model)


def _decide_conditions(snapshot: Snapshot, pending: int, situation: Situation) -> tuple[int, int]:
    """(rules that hold, those of them that hold only because a deny rule could not be decided)"""
    held = undecided = 0
    while pending:
        number = (pending & -pending).bit_length() - 1
        rule = snapshot.rules[number]
        group = snapshot.condition_groups[number] & pending
        pending ^= group
        try:
            if rule.condition is None or rule.condition.first_failure(situation) is None:
                held |= group
        except Undecidable:
            if rule.deny:
                held |= group
                undecided |= group
    return held, undecided


def _settle(snapshot: Snapshot, mask: int) -> RuleOutcome:
    """The outcome of a set of rules. The lowest id stands for several, whatever their order in the document."""
    settled = snapshot.settled.get(mask)
    if settled is not None:
        return settled
    rules = [rule for rule in snapshot.rules if mask >> rule.number & 1]
    obligations, localities = merge_obligations(rule.obligations for rule in rules if not rule.deny)
    settled = RuleOutcome(
        denied_by=next((rule for rule in rules if rule.deny), None),
        allowed_by=next((rule for rule in rules if not rule.deny), None),
        matched=tuple(rule.id for rule in rules),
        obligations=obligations,
        localities=localities,
    )
    if len(snapshot.settled) >= MAX_SETTLED:
        snapshot.settled.clear()
    snapshot.settled[mask] = settled
    return settled


def _builtin_refusal(
    snapshot: Snapshot, principal: Principal, action: str, model: ModelCard | None, context: RequestContext
) -> tuple[str, str] | None:
    """Refusals that no document can lift: (id, public reason)."""
    if principal.kind == "anonymous":
        return "builtin:anonymous", "nobody is identified"
    if action == SIGNED_IN_ONLY and principal.kind != "user":
        return "builtin:people-only", "only a person who signed in can be the second person of a change"
    if model is None:
        return None
    if principal.narrowed_models is not None and model.id not in principal.narrowed_models:
        return "builtin:narrowed-credential", f"this credential is not for `{model.id}`"
    if principal.clearance is not None:
        stated = context.data_class or snapshot.document.settings.default_data_class
        try:
            if data_class_rank(stated) > data_class_rank(principal.clearance):
                return "builtin:clearance", f"your clearance does not reach data class `{stated}`"
        except Undecidable:
            return "builtin:clearance", "the data class or your clearance is not a known class"
    return None


def _department_refusal(snapshot: Snapshot, effective: EffectiveSubject) -> str | None:
    if not snapshot.document.settings.require_department:
        return None
    charged = effective.charged_department
    if charged is None:
        return "no department is charged for you: your token names none"
    return None if is_declared(snapshot.document, charged) else f"the department `{charged}` is not a known one"


def _locality_refusal(required: frozenset[str], model: ModelCard | None) -> str | None:
    """A virtual model passes here: the model that it resolves to is decided again."""
    if not required:
        return None
    if len(required) > 1:
        return "your roles require the model to be in two different places"
    if model is None or model.virtual or model.labels.get(LOCALITY_LABEL) in required:
        return None
    return f"this request must stay on a model in `{next(iter(required))}`"


def _nothing_grants(action: str, model: ModelCard | None, unmet: tuple[str, ...]) -> str:
    what = f"no rule grants you `{action}`" if model is None else f"no rule grants you `{action}` on `{model.id}`"
    return f"{what}: {', '.join(unmet)}" if unmet else what


def _unmet(snapshot: Snapshot, rules: int, principal: Principal, context: RequestContext) -> tuple[str, ...]:
    """The unmet conditions of grants that a caller has otherwise: what the request could add."""
    situation, found = situation_of(snapshot, principal, context), set()
    while rules:
        number = (rules & -rules).bit_length() - 1
        rules ^= 1 << number
        condition = snapshot.rules[number].condition
        try:
            failed = None if condition is None else condition.first_failure(situation)
        except Undecidable as doubt:
            found.add(str(doubt))
        else:
            found.update(() if failed is None else (UNMET[failed],))
    return tuple(sorted(found))


def _refuse(
    snapshot: Snapshot, model: ModelCard | None, rule_id: str | None, reason: str, matched: tuple[str, ...]
) -> Decision:
    return Decision(
        effect=Effect.DENY,
        reason=reason,
        rule_id=rule_id,
        policy_version=snapshot.version,
        policy_sha256=snapshot.sha256,
        matched=matched,
        hidden=model is not None and snapshot.document.settings.hide_models,
        default_data_class=snapshot.document.settings.default_data_class,
        fixed_reason=True,
        named_words=snapshot.named_words,
    )


NOTHING = Obligations()
T = TypeVar("T")


def merge_obligations(specs: Iterable[ObligationSpec | None]) -> tuple[Obligations, frozenset[str]]:
    """The merged obligations and every locality that was asked for."""
    written = [spec for spec in specs if spec is not None]
    if not written:
        return NOTHING, frozenset()
    localities = frozenset(spec.require_locality for spec in written if spec.require_locality is not None)
    caps = [spec.max_output_tokens for spec in written if spec.max_output_tokens is not None]
    lengths = [spec.default_output_tokens for spec in written if spec.default_output_tokens is not None]
    days = [spec.response_store_days for spec in written if spec.response_store_days is not None]
    weights = [spec.share_weight for spec in written if spec.share_weight is not None]
    priorities = [spec.priority for spec in written if spec.priority is not None]
    merged = Obligations(
        max_output_tokens=min(caps, default=None),
        default_output_tokens=min(lengths, default=None),
        repetition_guard=_strongest(
            REPETITION_GUARD_ORDER, [spec.repetition_guard for spec in written], NOTHING.repetition_guard
        ),
        content_logging=_strongest(LOGGING_ORDER, [spec.content_logging for spec in written], NOTHING.content_logging),
        redaction=_strongest(REDACTION_ORDER, [spec.redaction for spec in written], NOTHING.redaction),
        guardrails=_strongest(GUARDRAIL_ORDER, [spec.guardrails for spec in written], NOTHING.guardrails),
        require_locality=min(localities, default=None),
        prefix_cache=_strongest(PREFIX_CACHE_ORDER, [spec.prefix_cache for spec in written], NOTHING.prefix_cache),
        cached_tokens=_strongest(CACHED_TOKENS_ORDER, [spec.cached_tokens for spec in written], NOTHING.cached_tokens),
        tools=_strongest(TOOLS_ORDER, [spec.tools for spec in written], NOTHING.tools),
        response_store_days=min(days, default=NOTHING.response_store_days),
        priority=max(priorities, default=NOTHING.priority),
        share_weight=min(weights, default=NOTHING.share_weight),
    )
    return merged, localities


def _strongest(order: Sequence[T], stated: Sequence[T | None], default: T) -> T:
    ranks = [order.index(value) for value in stated if value is not None]
    return order[max(ranks)] if ranks else default
