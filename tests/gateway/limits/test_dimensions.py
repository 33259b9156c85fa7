"""The table of dimensions against what must agree with it: rules, the policy document, counters and scripts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from gateway.access.document.model import COUNTS
from gateway.flow.values import LimitRule
from gateway.limits import store
from gateway.limits.claim import Claim, Settlement, Tally
from gateway.limits.dimensions import BY_NAME, DIMENSIONS, FIELDS, HELD, METERS, TALLY_FIELDS

NAMES = {dimension.name for dimension in DIMENSIONS}
CLAIM = Claim("c", 10, 20, 1, 0, 0, 64, 120_000)


def test_every_limit_of_a_rule_is_a_dimension_and_the_other_way_round() -> None:
    limits = {one.name for one in fields(LimitRule) if one.type == "int | None"} - {"window_s"}
    assert limits == NAMES == set(BY_NAME)


def test_the_policy_document_can_write_every_dimension() -> None:
    assert {*COUNTS, "cost_micro"} == NAMES


def test_every_meter_has_its_place_in_the_tally_the_claim_and_the_settlement() -> None:
    assert {one.name for one in fields(Tally)} == {*TALLY_FIELDS, "in_flight"}
    assert set(CLAIM.amounts(5)) == {meter.name for meter in METERS}
    assert set(Settlement("s", 1, 2, 3, ()).amounts) == {meter.name for meter in HELD}
    assert {meter.name for meter in METERS if meter.known} == set(CLAIM.known)


def test_no_two_meters_share_a_field_or_a_slot() -> None:
    slots = [meter.slot for meter in HELD]
    assert len(set(FIELDS)) == len(FIELDS) == len(TALLY_FIELDS)
    assert len(set(slots)) == len(slots)
    assert not {None, 4, 5} & set(slots)


@pytest.mark.parametrize("name", store.SCRIPTS)
def test_no_script_names_a_dimension_that_a_window_counts(name: str) -> None:
    text = (Path(store.__file__).parent / "scripts" / f"{name}.lua").read_text("utf-8")
    code = "\n".join(line.partition("--")[0] for line in text.splitlines())
    assert not [one for one in ("tokens_in", "tokens_out", "cost_micro", "(%S+)") if one in code]
