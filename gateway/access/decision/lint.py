"""Warnings about a compiled policy: dead patterns, shadowed rules, roles that give nothing, budgets that cannot count.

Never refuses anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.access.decision.compiled_policy import CompiledRule, Snapshot
from gateway.access.document.departments import unchecked_departments
from gateway.access.document.patterns import compile_pattern
from gateway.access.document.problems import Problem, listed, warning
from gateway.access.document.vocabulary import INFERENCE_ACTIONS
from gateway.documents.located_yaml import Path
from gateway.documents.schema_walk import nearest
from gateway.flow.values import ModelCard

MAX_SHADOW_RULES = 1000
"""The shadow check compares pairs; beyond this many rules it looks at unconditional denies only."""


def warnings_of(snapshot: Snapshot, *, seals_content: bool = True) -> list[Problem]:
    """`seals_content` False: where the policy will be in force, no key encrypts recorded content."""
    return [
        *_shadowed(snapshot),
        *_empty_roles(snapshot),
        *startup_warnings(snapshot, seals_content=seals_content),
    ]


def startup_warnings(snapshot: Snapshot, *, seals_content: bool = True) -> list[Problem]:
    """Those that somebody should hear when a gateway starts: with its models, the policy does not do what was meant."""
    return [
        *nobody(snapshot),
        *_dead_patterns(snapshot),
        *unpriced(snapshot),
        *currencies(snapshot),
        *unchecked_departments(snapshot.document),
        *([] if seals_content else _unsealed(snapshot)),
    ]


def _dead_patterns(snapshot: Snapshot) -> Iterator[Problem]:
    if not snapshot.catalog:
        return
    ids = tuple(snapshot.catalog)
    seen: dict[str, bool] = {}

    def is_dead(text: str) -> bool:
        if text not in seen:
            pattern = compile_pattern(text)
            seen[text] = not any(pattern.matches(model_id) for model_id in ids)
        return seen[text]

    for path, text in _patterns(snapshot):
        if is_dead(text):
            yield warning(f"`{text}` matches no model of the catalog", path, "dead_pattern", nearest(text, ids))


def _patterns(snapshot: Snapshot) -> Iterator[tuple[Path, str]]:
    document = snapshot.document
    for name, patterns in document.model_groups.items():
        for place, text in enumerate(patterns):
            yield ("modelGroups", name, place), text
    for index, rule in enumerate(document.rules):
        for place, text in enumerate(rule.models.ids if rule.models else ()):
            yield ("rules", index, "models", "ids", place), text
    for index, limit in enumerate(document.limits):
        if limit.scope.model is not None:
            yield ("limits", index, "scope", "model"), limit.scope.model


def _shadowed(snapshot: Snapshot) -> Iterator[Problem]:
    """Rules that can never decide: an allow inside an unconditional deny, or a repeat of a wider rule."""
    denies = [rule for rule in snapshot.rules if rule.deny and rule.condition is None]
    grants = [rule for rule in snapshot.rules if not rule.deny and rule.condition is None and not rule.obligations]
    small = len(snapshot.rules) <= MAX_SHADOW_RULES
    places = {rule.id: index for index, rule in enumerate(snapshot.document.rules)}
    for rule in snapshot.rules:
        wider = next((other for other in denies if other is not rule and _covers(snapshot, other, rule)), None)
        if wider is None and small and not rule.deny and not rule.obligations:
            wider = next((o for o in grants if o is not rule and _covers(snapshot, o, rule) and _first(o, rule)), None)
        if wider is None or (wider.deny and rule.deny and not _first(wider, rule)):
            continue
        yield warning(
            f"`{rule.id}` can never decide: `{wider.id}` covers every case of it",
            ("rules", places[rule.id]),
            "shadowed",
        )


def _first(wider: CompiledRule, rule: CompiledRule) -> bool:
    """Of two rules that cover each other only the later id is reported."""
    return wider.number < rule.number or rule.condition is not None


def _covers(snapshot: Snapshot, wide: CompiledRule, narrow: CompiledRule) -> bool:
    if wide.actions is not None and not (narrow.actions is not None and narrow.actions <= wide.actions):
        return False
    for outer, inner in (
        (wide.types, narrow.types),
        (wide.departments, narrow.departments),
        (wide.tenants, narrow.tenants),
    ):
        if outer is not None and not (inner is not None and inner <= outer):
            return False
    if not _covers_models(snapshot, wide, narrow):
        return False
    if wide.everyone:
        return True
    if narrow.everyone or not narrow.principals <= wide.principals:
        return False
    return all(snapshot.closures.get(role, frozenset({role})) & wide.roles for role in narrow.roles)


def _covers_models(snapshot: Snapshot, wide: CompiledRule, narrow: CompiledRule) -> bool:
    if wide.models is None:
        return wide.deny or narrow.models is None
    if narrow.models is None:
        return False
    if wide.models == narrow.models:
        return True
    bit_wide, bit_narrow = 1 << wide.number, 1 << narrow.number
    covered = [mask for mask in snapshot.by_model.values() if mask & bit_narrow]
    return bool(covered) and not narrow.models.wild and all(mask & bit_wide for mask in covered)


def _empty_roles(snapshot: Snapshot) -> Iterator[Problem]:
    granting = {role for rule in snapshot.rules if not rule.deny for role in rule.roles}
    for name in snapshot.document.roles:
        inherited_by = any(name in closure for role, closure in snapshot.closures.items() if role != name)
        if not (snapshot.closures[name] & granting) and not inherited_by:
            yield warning(f"role `{name}` gives nothing: no allow rule names it", ("roles", name), "empty_role")


STORING = ("encrypted", "redacted")
"""Values of `contentLogging` that need a key."""


def _unsealed(snapshot: Snapshot) -> Iterator[Problem]:
    for index, rule in enumerate(snapshot.document.rules):
        if rule.obligations is not None and rule.obligations.content_logging in STORING:
            yield warning(
                f"`{rule.id}` wants content stored, and this gateway has no key: its requests will be refused",
                ("rules", index, "obligations", "contentLogging"),
                "other",
                "set `audit.content_key_file`",
            )


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
