"""Who may give which rights to a machine."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.flow.values import Principal
from gateway.identity.narrowing import Rights, first_objection, rights_of, within


def caller(**changes: Any) -> Principal:
    base: dict[str, Any] = {
        "tenant": "acme",
        "issuer": "i",
        "subject": "ana",
        "roles": frozenset({"analyst", "platform-admin"}),
        "clearance": "internal",
        "department": "finanzas",
    }
    return Principal(**{**base, **changes})


def rights(**changes: Any) -> Rights:
    base: dict[str, Any] = {
        "roles": frozenset({"analyst"}),
        "models": None,
        "clearance": None,
        "department": "finanzas",
    }
    return Rights(**{**base, **changes})


def param(who: Principal, asked: Rights, held: frozenset[str] = frozenset()) -> str | None:
    objection = first_objection(who, rights_of(who, held), asked)
    if objection is None:
        return None
    assert objection.code == "cannot_grant_beyond_own_rights"
    return objection.param


def test_own_rights_can_be_given() -> None:
    assert param(caller(), rights(roles=frozenset({"analyst", "platform-admin"}), clearance="internal")) is None


def test_role_bound_by_policy_can_be_given() -> None:
    assert param(caller(), rights(roles=frozenset({"auditor"})), frozenset({"auditor"})) is None


@pytest.mark.parametrize(
    ("who", "asked", "expected"),
    [
        (caller(), rights(roles=frozenset({"auditor"})), "roles"),
        (caller(roles=frozenset()), rights(), "roles"),
        (caller(narrowed_models=("small",)), rights(), "models"),
        (caller(narrowed_models=("small",)), rights(models=("small", "large")), "models"),
        (caller(narrowed_models=()), rights(models=("small",)), "models"),
        (caller(), rights(clearance="confidential"), "clearance"),
        (caller(clearance=None), rights(clearance="internal"), "clearance"),
        (caller(), rights(department="tesoreria"), "department"),
        (caller(), rights(department=None), "department"),
    ],
)
def test_rights_beyond_ones_own_cannot_be_given(who: Principal, asked: Rights, expected: str) -> None:
    assert param(who, asked) == expected


def test_a_key_cannot_make_keys() -> None:
    who = caller(kind="service")
    objection = first_objection(who, rights_of(who, ()), rights())
    assert objection is not None
    assert objection.code == "interactive_credential_required"


@pytest.mark.parametrize(
    ("roles", "models", "expected"),
    [
        (None, None, None),
        (frozenset({"analyst"}), ("small",), None),
        (frozenset({"auditor"}), None, "roles"),
        (None, ("large",), "models"),
    ],
)
def test_key_stays_within_its_account(roles: Any, models: Any, expected: str | None) -> None:
    objection = within(rights(models=("small",)), roles, models)
    assert (objection.param if objection is not None else None) == expected
