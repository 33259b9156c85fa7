"""The inspection of a request, once as it was asked and again where the resolved model is under stricter duties.

Pure but for the inspector it asks. Standard library only.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.flow.evolve import evolve
from gateway.flow.ports import Inspector, OutputGuard
from gateway.flow.refusals import require_inspector, require_no_logprobs
from gateway.flow.stage_timer import StageTimer
from gateway.flow.stages import Authorized, Inspected, Reserved, Targeted
from gateway.flow.values import Decision, Finding, Inspection

REDACTION = ("off", "flag", "redact", "block")
GUARDRAILS = ("off", "default", "strict")
"""The values of the two obligations, the strictest last."""


async def inspected(inspector: Inspector | None, stage: Authorized, timer: StageTimer) -> Inspected:
    """With the redacted request where something was taken out.

    Raises `InvalidRequest` for log-probabilities of an answer that is to be redacted, and `Unavailable` where the
    obligations refuse what cannot be inspected. A block is in the value; `require_clean` raises it.
    """
    return stage.inspected(await _seen(inspector, stage, stage.asked, timer))


async def inspected_again(inspector: Inspector | None, target: Targeted, timer: StageTimer) -> Targeted:
    """Where the model that was chosen is under other duties than the one that was asked for. Raises the same."""
    if _same_actions(target.asked, target.decision):
        return target
    seen = await _seen(inspector, target, target.decision, timer)
    findings = _together(target.findings, seen.findings)
    return evolve(target, inspection=seen, findings=findings, request=seen.request or target.request)


async def _seen(inspector: Inspector | None, stage: Authorized, decision: Decision, timer: StageTimer) -> Inspection:
    require_no_logprobs(stage.request, decision)
    if inspector is None:
        require_inspector(decision)
        return Inspection()
    started = timer.now()
    seen = await inspector.inspect_input(stage.request, decision)
    timer.guard_us = timer.since(started) + (timer.guard_us or 0)
    return seen


def guard_of(inspector: Inspector | None, reserved: Reserved) -> OutputGuard | None:
    """The guard of the answer, by the stricter of what holds for the model as asked and for the one that runs."""
    asked, decision = reserved.asked, reserved.decision
    if inspector is None:
        return None
    if not _same_actions(asked, decision):
        one, other = asked.obligations, decision.obligations
        obligations = replace(
            other,
            redaction=max(one.redaction, other.redaction, key=REDACTION.index),
            guardrails=max(one.guardrails, other.guardrails, key=GUARDRAILS.index),
        )
        decision = replace(decision, obligations=obligations)
    return inspector.guard_output(reserved.request, decision)


def stricter(decision: Decision, than: Decision) -> bool:
    """Whether an answer under way is guarded by less than what holds now."""
    one, other = decision.obligations, than.obligations
    return REDACTION.index(one.redaction) > REDACTION.index(other.redaction) or GUARDRAILS.index(
        one.guardrails
    ) > GUARDRAILS.index(other.guardrails)


def _same_actions(asked: Decision, decision: Decision) -> bool:
    if asked is decision:
        return True
    one, other = asked.obligations, decision.obligations
    return (one.redaction, one.guardrails) == (other.redaction, other.guardrails)


def _together(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What a first inspection only flagged is still in the text, and the second has found it again."""
    again = {(found.category, found.where) for found in second}
    kept = [found for found in first if found.action != "flag" or (found.category, found.where) not in again]
    return (*kept, *second)
