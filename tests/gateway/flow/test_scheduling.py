"""Work in the background is behind everybody, in a share of its own."""

from __future__ import annotations

from uuid import UUID

import pytest
from pydantic import ValidationError

from gateway.access.document.model import ObligationSpec
from gateway.flow.context import RequestContext
from gateway.flow.scheduling import scheduling_of
from gateway.flow.values import Obligations, Principal
from tests.fakes.policies import NOON

ANA = Principal("acme", "https://idp", "ana")


def context(*, background: bool) -> RequestContext:
    return RequestContext(UUID(int=1), NOON, 0.0, "/v1/chat/completions", deadline_s=9.0, background=background)


def test_background_is_behind_whatever_policy_can_name() -> None:
    ObligationSpec(priority=1000)
    with pytest.raises(ValidationError):
        ObligationSpec(priority=1001)
    last = 1000
    front = scheduling_of(ANA, Obligations(priority=last), context(background=False))
    behind = scheduling_of(ANA, Obligations(priority=-last), context(background=True))
    assert behind.priority > front.priority == last


def test_background_has_a_small_share_apart_from_its_callers() -> None:
    front = scheduling_of(ANA, Obligations(share_weight=2.0), context(background=False))
    behind = scheduling_of(ANA, Obligations(share_weight=2.0), context(background=True))
    assert (front.share_key, front.share_weight, front.deadline_s) == ("acme/ana", 2.0, 9.0)
    assert behind.share_key != front.share_key
    assert behind.share_weight < front.share_weight / 5
