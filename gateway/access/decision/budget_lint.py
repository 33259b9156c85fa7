"""Warnings about a policy that compiles and yet does not do what was meant: money that is not counted, nobody let in.

What a person should hear when a gateway starts, beside dead patterns. Refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.document.problems import Problem, listed, warning
from gateway.access.document.vocabulary import INFERENCE_ACTIONS
from gateway.flow.values import ModelCard


def currencies(snapshot: Snapshot) -> Iterator[Problem]:
    """A budget in one currency refuses models priced in another: nobody converts."""
    for index, limit_id, currency, covered in _money(snapshot):
        refused = sorted(card.id for card in covered if card.currency != currency and _priced(card))
        if refused:
            yield warning(
                f"`{limit_id}` counts {currency}; it refuses what is priced in another currency: {listed(refused, 5)}",
                ("limits", index),
                "other",
                "give the models and the budget one currency, or a scope without these models",
            )


def unpriced(snapshot: Snapshot) -> Iterator[Problem]:
    """A budget of money never binds on models that cost nothing."""
    for index, limit_id, _, covered in _money(snapshot):
        free = sorted(card.id for card in covered if not _priced(card))
        if free:
            what = "all that it covers" if len(free) == len(covered) else "some of what it covers"
            yield warning(
                f"`{limit_id}` counts money, and {what} has no price, so it is never counted: {listed(free, 5)}",
                ("limits", index),
                "unpriced",
                "set `price_in` and `price_out` of these models, or limit `tokens`",
            )


def nobody(snapshot: Snapshot) -> Iterator[Problem]:
    """No allow rule reaches any model of the catalog: every request would be refused."""
    real = [card for card in snapshot.catalog.values() if not card.virtual]
    granting = 0
    for action in INFERENCE_ACTIONS:
        granting |= snapshot.by_action.get(action) & ~snapshot.denies
    if real and not any(snapshot.by_model[card.id] & granting for card in real):
        yield warning(
            f"no rule grants any model of the catalog: every request is refused and `GET /v1/models` is empty. The "
            f"models are {listed(sorted(card.id for card in real), 5)}",
            ("rules",),
            "no_model_use",
            "name these models in `modelGroups` or in a rule, and put that policy in force",
        )


def _money(snapshot: Snapshot) -> Iterator[tuple[int, str, str, list[ModelCard]]]:
    """Limits of money: place, id, currency and the real models that they cover."""
    places = {limit.id: index for index, limit in enumerate(snapshot.document.limits)}
    real = [card for card in snapshot.catalog.values() if not card.virtual]
    for limit in snapshot.limits:
        if limit.quantities["cost_micro"] is not None:
            covered = [card for card in real if limit.models is None or limit.models.matches(card)]
            limit_id = limit.quantities["id"]
            yield places[limit_id], limit_id, limit.quantities["currency"], covered


def _priced(card: ModelCard) -> bool:
    return bool(card.price_in_micro or card.price_out_micro)
