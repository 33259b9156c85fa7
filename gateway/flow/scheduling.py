"""The hints by which a backend with a queue orders a request. Pure, standard library only."""

from __future__ import annotations

from gateway.flow.context import RequestContext
from gateway.flow.values import Obligations, Principal, SchedulingHints

BACKGROUND_PRIORITY = 3000
"""Added to the priority: behind everything that policy can name, which is at most 1000 away from 0."""
BACKGROUND_WEIGHT = 0.1
"""Part of the share that the same caller's requests have for which somebody waits."""


def scheduling_of(principal: Principal, obligations: Obligations, context: RequestContext) -> SchedulingHints:
    """Work in the background has a share of its own: it takes nothing from what its caller asks for meanwhile."""
    share_key = f"{principal.tenant}/{principal.subject}"
    behind = context.background
    return SchedulingHints(
        share_key=f"background {share_key}" if behind else share_key,
        share_weight=obligations.share_weight * (BACKGROUND_WEIGHT if behind else 1.0),
        priority=obligations.priority + (BACKGROUND_PRIORITY if behind else 0),
        deadline_s=context.deadline_s,
    )
