"""The rights that a change of the policy would give, or ease, for its author and the accounts they own. Pure.

An author is more than the token that they change the policy with: they are compared as every identity that they were
seen as, as all of these at once, and with every scope that a mapping names, because whoever asks for a token chooses
its scopes.

Compares decisions, not texts: both versions decide for the same principal in every situation that the rules can tell
apart (data class, purpose, client, source, time, expiry of bindings). It therefore does not matter by which rule,
role, group, department or condition something is gained. A comparison that would grow too large counts as a gain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import prod
from typing import Any

from gateway.access.decision.compiled_policy import CompiledRule, Snapshot
from gateway.access.decision.effective_subject import effective_subject, principal_key
from gateway.access.decision.evaluator import evaluate, rule_masks
from gateway.access.document.conditions import Condition, Situation, Undecidable, read_address
from gateway.access.document.vocabulary import (
    CACHED_TOKENS_ORDER,
    DATA_CLASSES,
    GUARDRAIL_ORDER,
    INFERENCE_ACTIONS,
    LOGGING_ORDER,
    PREFIX_CACHE_ORDER,
    REDACTION_ORDER,
    REPETITION_GUARD_ORDER,
    TOOLS_ORDER,
)
from gateway.access.history.eased_limits import LAST, eased_limit
from gateway.flow.context import Client, RequestContext
from gateway.flow.values import ModelCard, Obligations, Principal

MAX_SITUATIONS = 5000
EVER = datetime.min.replace(tzinfo=UTC)
"""Before every expiry: all bindings count."""
OTHER = "\x00other"
"""A purpose or client that no rule can name."""


@dataclass(frozen=True, slots=True)
class Gain:
    """`weaker` names an obligation, or a limit as `limits.<id>`, that would be eased; None: the use itself is new.
    `account` says whose it is, if not the author's own."""

    action: str
    model: str
    weaker: str | None = None
    account: str | None = None

    @property
    def sentence(self) -> str:
        whose = "you" if self.account is None else self.account
        if self.weaker is None:
            return f"This change would give {whose} `{self.action}` on `{self.model}`."
        return f"This change would ease `{self.weaker}` for {whose} in `{self.action}` on `{self.model}`."


def first_gain(
    before: Snapshot,
    after: Snapshot,
    author: Principal,
    owned: Sequence[Principal],
    context: RequestContext,
    seen: Sequence[Principal] = (),
) -> Gain | None:
    """`owned` are the service accounts of the author, with the rights that the author could give them. `seen` is what
    the author, and the person behind an account that is the author, were lately known as."""
    compared = set()
    for who, account in _selves(before, after, author, owned, context, seen):
        same = _distinct(before, after, who)
        if same in compared:
            continue
        compared.add(same)
        for model in after.catalog.values():
            for action in INFERENCE_ACTIONS:
                gain = _gain(before, after, who, action, model, context)
                if gain is not None:
                    return replace(gain, account=account)
    return None


def _distinct(before: Snapshot, after: Snapshot, who: Principal) -> tuple[object, ...]:
    """All that the two versions can tell somebody by, apart from the situation."""
    roles = tuple(effective_subject(policy, who, EVER).roles for policy in (before, after))
    key = (who.key_lineage, who.credential_id) if who.kind == "service" else None
    return principal_key(who), roles, who.tenant, who.kind, who.department, who.clearance, who.narrowed_models, key


def _selves(
    before: Snapshot,
    after: Snapshot,
    author: Principal,
    owned: Sequence[Principal],
    context: RequestContext,
    seen: Sequence[Principal],
) -> Iterator[tuple[Principal, str | None]]:
    key = principal_key(author)
    past = [one for one in seen if principal_key(one) == key]
    for self in _wider([author, *past], before, after):
        yield self, None
    for account in owned:
        name = f"your service account `{account.display or account.subject}`"
        yield account, name
        if account.clearance is not None:
            yield replace(account, clearance=None), name
    if author.owner is not None:
        # The person behind an account: known is what they were seen as, and that they held its roles when they made it.
        issuer, subject = author.owner
        person = Principal(author.tenant, issuer, subject, roles=author.roles, department=author.department)
        owner = principal_key(person)
        for self in _wider([person, *(one for one in seen if principal_key(one) == owner)], before, after):
            yield self, "its owner"
    if author.kind != "user":
        return
    if any(evaluate(policy, author, "identity.write", None, context).allowed for policy in (before, after)):
        # An account that the author could make tomorrow, with all of their roles or with none.
        roles = author.roles.union(*(effective_subject(before, one, EVER).roles | one.roles for one in (author, *past)))
        future = Principal(
            author.tenant, OTHER, OTHER, "service", department=author.department, owner=(author.issuer, author.subject)
        )
        for made in (replace(future, roles=roles), future):
            yield made, "a service account that you could make"


def _wider(selves: Sequence[Principal], before: Snapshot, after: Snapshot) -> Iterator[Principal]:
    """Each of them and all of them at once, as they are and as they could be with a token of other scopes, or of no
    clearance."""
    first = selves[0]
    whole = replace(
        first,
        roles=first.roles.union(*(one.roles for one in selves)),
        groups=first.groups.union(*(one.groups for one in selves)),
        scopes=first.scopes.union(*(one.scopes for one in selves)),
    )
    for one in (*selves, whole):
        chosen = _scopes_of(one.provider, before) | _scopes_of(one.provider, after)
        for self in (one, replace(one, scopes=one.scopes | chosen)):
            yield self
            if self.clearance is not None:
                yield replace(self, clearance=None)


def _scopes_of(provider: str | None, policy: Snapshot) -> frozenset[str]:
    """Scopes of a provider by which the policy gives roles."""
    return frozenset(value for name, claim, value in policy.mappings if name == provider and claim == "scopes")


def _gain(
    before: Snapshot, after: Snapshot, who: Principal, action: str, model: ModelCard, context: RequestContext
) -> Gain | None:
    old_rules, new_rules = (_reaching(policy, who, action, model) for policy in (before, after))
    same = _same(before, after, who)
    if any(not rule.deny for rule in new_rules) and not (same and before.limits == after.limits):
        limit = eased_limit(before, after, who, model, context.received_at)
        if limit is not None:
            return Gain(action, model.id, f"limits.{limit}")
    if same and _meaning(old_rules) == _meaning(new_rules):
        return None
    situations = _Situations(before, after, who, [*old_rules, *new_rules], context.received_at)
    if situations.count > MAX_SITUATIONS:
        return Gain(action, model.id)
    for principal, moment in situations.each(context):
        new = evaluate(after, principal, action, model, moment)
        if not new.allowed:
            continue
        old = evaluate(before, principal, action, model, moment)
        if not old.allowed:
            return Gain(action, model.id)
        weaker = _weaker(old.obligations, new.obligations)
        if weaker is not None:
            return Gain(action, model.id, weaker)
    return None


def _reaching(snapshot: Snapshot, who: Principal, action: str, model: ModelCard) -> list[CompiledRule]:
    """Rules that apply to this principal, action and model at some time, under some condition."""
    subjects, *rest = rule_masks(snapshot, who, effective_subject(snapshot, who, EVER), action, model)
    for mask in rest:
        subjects &= mask
    found = []
    while subjects:
        lowest = subjects & -subjects
        found.append(snapshot.rules[lowest.bit_length() - 1])
        subjects ^= lowest
    return found


def _meaning(rules: Iterable[CompiledRule]) -> frozenset[tuple[object, ...]]:
    return frozenset((rule.deny, rule.condition, rule.obligations) for rule in rules)


def _same(before: Snapshot, after: Snapshot, who: Principal) -> bool:
    """Do the two versions agree on what decides besides rules?"""
    key = principal_key(who)
    return (
        before.document.settings == after.document.settings
        and before.document.departments == after.document.departments
        and before.document.roles == after.document.roles
        and before.bindings.get(key) == after.bindings.get(key)
        and before.closures == after.closures
    )


def _weaker(old: Obligations, new: Obligations) -> str | None:
    """The first obligation that binds less than before, by the name that a policy gives it."""
    if old.max_output_tokens is not None and (
        new.max_output_tokens is None or new.max_output_tokens > old.max_output_tokens
    ):
        return "maxOutputTokens"
    if old.default_output_tokens is not None and (
        new.default_output_tokens is None or new.default_output_tokens > old.default_output_tokens
    ):
        return "defaultOutputTokens"
    for name, order, then, now in (
        ("repetitionGuard", REPETITION_GUARD_ORDER, old.repetition_guard, new.repetition_guard),
        ("redaction", REDACTION_ORDER, old.redaction, new.redaction),
        ("guardrails", GUARDRAIL_ORDER, old.guardrails, new.guardrails),
        ("contentLogging", LOGGING_ORDER, old.content_logging, new.content_logging),
        ("prefixCache", PREFIX_CACHE_ORDER, old.prefix_cache, new.prefix_cache),
        ("cachedTokens", CACHED_TOKENS_ORDER, old.cached_tokens, new.cached_tokens),
        ("tools", TOOLS_ORDER, old.tools, new.tools),
    ):
        if order.index(now) < order.index(then):
            return name
    if old.require_locality is not None and new.require_locality != old.require_locality:
        return "requireLocality"
    if new.response_store_days > old.response_store_days:
        return "responseStoreDays"
    if new.priority < old.priority:
        return "priority"
    return "shareWeight" if new.share_weight > old.share_weight else None


class _Situations:
    """Representatives of everything that the conditions of `rules` can tell apart."""

    def __init__(
        self, before: Snapshot, after: Snapshot, who: Principal, rules: Sequence[CompiledRule], now: datetime
    ) -> None:
        self._who = who
        self._conditions = list(dict.fromkeys(rule.condition for rule in rules if rule.condition is not None))
        conditions = self._conditions
        classes: list[str | None] = list(DATA_CLASSES)
        if before.document.settings.default_data_class != after.document.settings.default_data_class:
            classes.append(None)
        elif who.clearance is None:
            classes = self._distinct("dataClass", classes, lambda value: _situation(now, data_class=value))
        purposes = {name for one in conditions for name in (*(one.purposes or ()), *(one.excluded_purposes or ()))}
        clients = {name for one in conditions for name in one.clients or ()} if who.kind == "user" else set()
        self._axes: tuple[list[Any], ...] = (
            classes,
            self._distinct("purpose", [None, OTHER, *sorted(purposes)], lambda value: _situation(now, purpose=value)),
            self._distinct(
                "clients", [who.client_id, *sorted(clients)], lambda value: _situation(now, client_id=value)
            ),
            self._distinct("sourceCidr", _addresses(conditions), lambda value: _situation(now, source=value)),
            self._times(before, after, now),
        )

    @property
    def count(self) -> int:
        return prod(len(axis) for axis in self._axes)

    def each(self, context: RequestContext) -> Iterator[tuple[Principal, RequestContext]]:
        for data_class, purpose, client, source, at in itertools.product(*self._axes):
            moment = replace(context, received_at=at, data_class=data_class, purpose=purpose, client=Client(ip=source))
            yield replace(self._who, client_id=client), moment

    def _distinct(self, name: str, values: Iterable[Any], situation: Any) -> list[Any]:
        """One value for each way in which the tests of that name can come out."""
        found: dict[tuple[object, ...], Any] = {}
        for value in values:
            found.setdefault(self._outcomes(name, situation(value)), value)
        return list(found.values())

    def _outcomes(self, name: str, situation: Situation) -> tuple[object, ...]:
        return tuple(
            _outcome(condition, test, situation)
            for condition in self._conditions
            for test_name, test in condition.tests
            if test_name == name
        )

    def _times(self, before: Snapshot, after: Snapshot, now: datetime) -> list[datetime]:
        """The edges of every window in the coming week, in the last week of every binding, and after all of them."""
        held = [
            (policy, one) for policy in (before, after) for one in policy.bindings.get(principal_key(self._who), ())
        ]
        ends = {one.expires for _, one in held if one.expires is not None and one.expires > now}
        weeks = [now, LAST, *(max(now, end - timedelta(days=7)) for end in ends)]
        found: dict[tuple[object, ...], datetime] = {}
        for start in weeks:
            for at in (start, *self._edges(start), *(end - timedelta(seconds=1) for end in ends)):
                if at < now:
                    continue
                active = tuple(one.expires is None or at < one.expires for _, one in held)
                found.setdefault((active, self._outcomes("time", _situation(at))), at)
        return list(found.values())

    def _edges(self, start: datetime) -> Iterator[datetime]:
        windows = {one.window for one in self._conditions if one.window is not None}
        for window in windows:
            midnight = start.astimezone(window.zone).replace(hour=0, minute=0, second=0, microsecond=0)
            for day, minute in itertools.product(range(8), {window.start_minute, window.end_minute}):
                # Wall-clock arithmetic within the zone, as the window itself is meant.
                yield (midnight + timedelta(days=day, minutes=minute)).astimezone(UTC)


def _outcome(condition: Condition, test: Any, situation: Situation) -> bool | None:
    try:
        return bool(test(condition, situation))
    except Undecidable:
        return None


def _situation(at: datetime, **known: Any) -> Situation:
    values: dict[str, Any] = {"data_class": None, "purpose": None, "source": None, "client_id": None, **known}
    values["source"] = read_address(values["source"])
    return Situation(at=at, **values)


def _addresses(conditions: Iterable[Condition]) -> list[str | None]:
    """Both ends of every network and their neighbors outside, and no address at all."""
    found: list[str | None] = [None]
    for network in {network for one in conditions for network in one.networks or ()}:
        first, last = network.network_address, network.broadcast_address
        found += [str(first), str(last)]
        if int(first) > 0:
            found.append(str(first - 1))
        if int(last) < 2**network.max_prefixlen - 1:
            found.append(str(last + 1))
    return found
