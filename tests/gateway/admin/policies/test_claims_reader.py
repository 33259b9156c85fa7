"""Explaining by the claims of a token, through the mapping of the configured providers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.policies.claims_reader import ClaimsReader
from gateway.errors import InvalidRequest
from gateway.flow.context import SystemClock
from gateway.settings import IdentitySettings, ProviderSettings

ISSUER = "https://idp.test/realms/corp"


@pytest.fixture
def reader() -> ClaimsReader:
    provider = ProviderSettings(
        name="corp",
        type="keycloak",
        issuer=ISSUER,
        audiences=("ai-gateway",),
        department_claim="department",
        role_map={"risk-analysts": ("analyst",)},
    )
    return ClaimsReader(IdentitySettings(providers=(provider,)), SystemClock())


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "sub": "u-1", "realm_access": {"roles": ["risk-analysts"]}, **more}


def test_claims_are_mapped_as_a_token_of_that_provider_would_be(reader: ClaimsReader) -> None:
    principal = reader(claims(department="risk"))
    assert (principal.subject, principal.roles, principal.department) == ("u-1", frozenset({"analyst"}), "risk")
    assert principal.provider == "corp"


@pytest.mark.parametrize(
    "wrong",
    [{"iss": "https://elsewhere"}, {"iss": 5}, {"sub": ""}, {"realm_access": {"roles": "analyst"}}],
)
def test_claims_of_a_wrong_shape_are_refused(reader: ClaimsReader, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        reader(claims() | wrong)
    assert raised.value.code == "invalid_claims"
