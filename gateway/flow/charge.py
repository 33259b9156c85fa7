"""The charge for a refused or abandoned request: one request of the caller's limits. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import Unavailable
from gateway.flow.budget import requests_only
from gateway.flow.growth import grow
from gateway.flow.ports import Authorizer, Catalog, Limiter
from gateway.flow.values import ANONYMOUS, Estimate, Exchange, LimitRule, LimitVerdict, ModelCard

NO_MODEL = ModelCard("-", backend="")
"""For a claim that counts requests only."""


def limits_of(exchange: Exchange, authorizer: Authorizer) -> Iterator[LimitRule]:
    """The caller's, whatever the model. Looked up when the first is asked for: only while some window is known full."""
    yield from authorizer.limits_of(exchange.principal, exchange.context)


async def charged(
    exchange: Exchange, limiter: Limiter, authorizer: Authorizer, catalog: Catalog
) -> tuple[Exchange, LimitVerdict | None]:
    """The exchange with the claim of one request, to be settled with no tokens, or the verdict of the limit that has no
    room for it: whoever is refused is told that instead, so that a refusal is never free.

    Reading, inspecting and counting are work: a flood of refusals ends in 429, and trying until something passes is
    bounded. Where no model was decided on, the limits that hold whatever is asked for count it. A store that is away
    counts nothing and changes no refusal.
    """
    limits = requests_only(_limits(exchange, authorizer))
    if not limits or not _uncounted(exchange):
        return exchange, None
    card = catalog.get(exchange.request.model) if exchange.request is not None else None
    verdict = await limiter.reserve(str(exchange.request_id), limits, Estimate(0, 0), card or NO_MODEL)
    full = None if verdict.allowed or verdict.kind == "store" else verdict
    return grow(exchange, reservation=verdict.reservation), full


def _uncounted(exchange: Exchange) -> bool:
    """No claim of this request was made: what fell back was counted with its first candidate."""
    return exchange.principal is not ANONYMOUS and exchange.reservation is None and not exchange.fallbacks


def _limits(exchange: Exchange, authorizer: Authorizer) -> tuple[LimitRule, ...]:
    if exchange.asked is not None and exchange.asked.allowed:
        return tuple(exchange.asked.limits)
    try:
        return authorizer.limits_of(exchange.principal, exchange.context)
    except Unavailable:
        return ()
