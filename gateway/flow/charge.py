"""The charge for a refused or abandoned request: one request of the caller's limits. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import Unavailable
from gateway.flow.budget import requests_only
from gateway.flow.ports import Authorizer, Catalog, Limiter
from gateway.flow.stages import Authenticated, Authorized, Received, Reserved, Routed, request_of
from gateway.flow.values import ANONYMOUS, Estimate, LimitRule, LimitVerdict, ModelCard, Reservation

NO_MODEL = ModelCard("-", backend="")
"""For a claim that counts requests only."""


def limits_of(caller: Authenticated, authorizer: Authorizer) -> Iterator[LimitRule]:
    """The caller's, whatever the model. Looked up when the first is asked for: only while some window is known full."""
    yield from authorizer.limits_of(caller.principal, caller.context)


async def charged(
    stage: Received, limiter: Limiter, authorizer: Authorizer, catalog: Catalog
) -> tuple[Reservation | None, LimitVerdict | None]:
    """The claim of one request, to be settled with no tokens, or the verdict of the limit that has no room for it:
    whoever is refused is told that instead, so that a refusal is never free.

    Reading, inspecting and counting are work: a flood of refusals ends in 429, and trying until something passes is
    bounded. Where no model was decided on, the limits that hold whatever is asked for count it. A store that is away
    counts nothing and changes no refusal.
    """
    if not isinstance(stage, Authenticated) or not _uncounted(stage):
        return None, None
    limits = requests_only(_limits(stage, authorizer))
    if not limits:
        return None, None
    request = request_of(stage)
    card = catalog.get(request.model) if request is not None else None
    verdict = await limiter.reserve(limits, Estimate(0, 0), card or NO_MODEL)
    full = None if verdict.allowed or verdict.kind == "store" else verdict
    return verdict.reservation, full


def _uncounted(stage: Authenticated) -> bool:
    """No claim of this request was made: what fell back was counted with its first candidate."""
    fell_back = isinstance(stage, Routed) and bool(stage.fallbacks)
    return stage.principal is not ANONYMOUS and not isinstance(stage, Reserved) and not fell_back


def _limits(stage: Authenticated, authorizer: Authorizer) -> tuple[LimitRule, ...]:
    if isinstance(stage, Authorized) and stage.asked.allowed:
        return tuple(stage.asked.limits)
    try:
        return authorizer.limits_of(stage.principal, stage.context)
    except Unavailable:
        return ()
