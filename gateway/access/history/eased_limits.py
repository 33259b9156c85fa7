"""The limits that a change of the policy would ease for somebody. Pure.

Compares the limits that each version resolves for the same principal and model, counter by counter. A limit that is
gone, counts under another name or in another window, or allows more is eased; one that was added or lowered is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.effective_subject import effective_subject, principal_key
from gateway.access.decision.quotas import limits_for
from gateway.access.document.model import COUNTS
from gateway.flow.values import LimitRule, ModelCard, Principal

LAST = datetime(9990, 1, 1, tzinfo=UTC)
"""After every expiry that anybody means."""
_QUANTITIES = (*COUNTS, "cost_micro")
_COUNTER = ("scope", "window", "window_s", "tz", "currency")
_LENIENCE = ("deny", "local", "allow")


def eased_limit(before: Snapshot, after: Snapshot, who: Principal, model: ModelCard, now: datetime) -> str | None:
    """The id of the first limit that holds `who` back less on this model than it did, for any purpose, at any time."""
    for at in _times(before, after, who, now):
        holders = [effective_subject(policy, who, at) for policy in (before, after)]
        for purpose in (None, *sorted(before.limit_purposes | after.limit_purposes)):
            old, new = (
                limits_for(policy, who, effective, model, purpose)
                for policy, effective in zip((before, after), holders, strict=True)
            )
            eased = first_eased(old, new)
            if eased is not None:
                return eased
    return None


def first_eased(old: Sequence[LimitRule], new: Sequence[LimitRule]) -> str | None:
    kept = {(rule.id, rule.scope_key): rule for rule in new}
    for rule in old:
        now = kept.get((rule.id, rule.scope_key))
        if now is None or not _holds_as_much(rule, now):
            return rule.id
    return None


def _holds_as_much(old: LimitRule, new: LimitRule) -> bool:
    if any(getattr(old, name) != getattr(new, name) for name in _COUNTER):
        return False
    if old.sliding and not new.sliding:
        return False
    if _LENIENCE.index(new.on_store_error) > _LENIENCE.index(old.on_store_error):
        return False
    return not any(_more(getattr(old, name), getattr(new, name)) for name in _QUANTITIES)


def _more(old: int | None, new: int | None) -> bool:
    return old is not None and (new is None or new > old)


def _times(before: Snapshot, after: Snapshot, who: Principal, now: datetime) -> Iterator[datetime]:
    """Now, after every expiry, and just before each expiry of a binding that could change what is held."""
    yield now
    yield LAST
    held = [one for policy in (before, after) for one in policy.bindings.get(principal_key(who), ())]
    for end in {one.expires for one in held if one.expires is not None and one.expires > now}:
        yield max(now, end - timedelta(seconds=1))
