"""The explanation of a decision: every rule with its part in it. The decision itself is `evaluate`'s, unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.access.decision.compiled_policy import CompiledRule, Snapshot
from gateway.access.decision.effective_subject import RoleOrigin, role_origins
from gateway.access.decision.evaluator import DIMENSIONS, evaluate, match_rules, rule_masks, situation_of
from gateway.access.document.conditions import Situation, Undecidable
from gateway.flow.context import RequestContext
from gateway.flow.values import Decision, ModelCard, Principal

Part = Literal["decides", "agrees", "loses", "unmatched"]


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """`why` says what failed for an unmatched rule, or what could not be decided for a matched deny rule."""

    id: str
    effect: Literal["allow", "deny"]
    part: Part
    why: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    decision: Decision
    roles: tuple[RoleOrigin, ...]
    undeclared_roles: tuple[str, ...]
    """Roles of the token that the policy does not know; they give nothing."""
    charged_department: str | None
    rules: tuple[RuleTrace, ...]

    def having(self, part: Part) -> tuple[str, ...]:
        return tuple(trace.id for trace in self.rules if trace.part == part)


def explain(
    snapshot: Snapshot, principal: Principal, action: str, model: ModelCard | None, context: RequestContext
) -> Explanation:
    decision = evaluate(snapshot, principal, action, model, context)
    match = match_rules(snapshot, principal, action, model, context)
    masks = rule_masks(snapshot, principal, match.effective, action, model)
    situation = situation_of(snapshot, principal, context)
    any_deny = bool(match.rules & snapshot.denies)
    traces = []
    for rule in snapshot.rules:
        bit = 1 << rule.number
        effect: Literal["allow", "deny"] = "deny" if rule.deny else "allow"
        if match.rules & bit:
            why = _doubt(rule, situation) if match.undecided & bit else ""
            traces.append(RuleTrace(rule.id, effect, _part(rule, decision, any_deny), why))
        else:
            failed = [name for name, mask in zip(DIMENSIONS, masks, strict=True) if not mask & bit]
            traces.append(RuleTrace(rule.id, effect, "unmatched", ", ".join(failed) or _unmet(rule, situation)))
    return Explanation(
        decision=decision,
        roles=role_origins(snapshot, principal, context.received_at),
        undeclared_roles=tuple(sorted(principal.roles - set(snapshot.closures))),
        charged_department=match.effective.charged_department,
        rules=tuple(traces),
    )


def _part(rule: CompiledRule, decision: Decision, any_deny: bool) -> Part:
    if rule.id == decision.rule_id:
        return "decides"
    if not rule.deny and (any_deny or not decision.allowed):
        return "loses"
    return "agrees"


def _unmet(rule: CompiledRule, situation: Situation) -> str:
    if rule.condition is None:
        return ""
    try:
        return f"when.{rule.condition.first_failure(situation)}"
    except Undecidable as doubt:
        return f"when: {doubt}"


def _doubt(rule: CompiledRule, situation: Situation) -> str:
    return f"denies because it cannot be decided; {_unmet(rule, situation)}"
