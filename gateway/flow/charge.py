"""What a refusal costs its caller: one request of the limits. Standard library only."""

from __future__ import annotations

from gateway.errors import Unavailable
from gateway.flow.budget import requests_only
from gateway.flow.growth import grow
from gateway.flow.ports import Authorizer, Catalog, Limiter
from gateway.flow.values import Estimate, Exchange, LimitRule, ModelCard

NO_MODEL = ModelCard("-", backend="")
"""For a claim that counts requests only."""


async def charged(exchange: Exchange, limiter: Limiter, authorizer: Authorizer, catalog: Catalog) -> Exchange:
    """The exchange with the claim of one request, to be settled with no tokens.

    Reading, inspecting and counting are work: a flood of refusals ends in 429, and trying until something passes is
    bounded. Where no model was decided on, the limits that hold whatever is asked for count it.
    """
    limits = requests_only(_limits(exchange, authorizer))
    if not limits:
        return exchange
    card = catalog.get(exchange.request.model) if exchange.request is not None else None
    verdict = await limiter.reserve(str(exchange.request_id), limits, Estimate(0, 0), card or NO_MODEL)
    return grow(exchange, reservation=verdict.reservation)


def _limits(exchange: Exchange, authorizer: Authorizer) -> tuple[LimitRule, ...]:
    if exchange.asked is not None and exchange.asked.allowed:
        return tuple(exchange.asked.limits)
    try:
        return authorizer.limits_of(exchange.principal, exchange.context)
    except Unavailable:
        return ()
