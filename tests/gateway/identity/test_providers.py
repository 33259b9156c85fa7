"""Provider configurations: what each type implies, and what ends the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.identity.claim_path import ClaimPath
from gateway.identity.providers import ProviderTable, build_providers, warnings_of_people
from gateway.settings import AccessSettings, IdentitySettings, ProviderSettings

TID = "11111111-1111-4111-8111-111111111111"
OTHER_TID = "22222222-2222-4222-8222-222222222222"


def settings(**changes: Any) -> ProviderSettings:
    base: dict[str, Any] = {"name": "corp", "issuer": "https://idp.test", "audiences": ("gw",)}
    return ProviderSettings(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"audiences": ()}, "audiences"),
        ({"audiences": ("",)}, "audiences"),
        ({"issuer": "http://idp.test"}, "https"),
        ({"issuer": "https://user@idp.test"}, "https"),
        ({"issuer": "https://idp.test?x=1"}, "https"),
        ({"issuer": ""}, "https"),
        ({"algorithms": ("none",)}, "`none`"),
        ({"algorithms": ("HS256",)}, "`HS256`"),
        ({"algorithms": ("RS1",)}, "`RS1`"),
        ({"algorithms": ("rs256",)}, "`rs256`"),
        ({"algorithms": ()}, "must not be empty"),
        ({"default_key_algorithm": "RS512"}, "default_key_algorithm"),
        ({"shared_secret": "x" * 40}, "shared_secret"),
        ({"type": "shared_secret", "shared_secret": "short"}, "at least 32"),
        ({"type": "shared_secret"}, "at least 32"),
        ({"type": "shared_secret", "shared_secret": "x" * 40, "jwks_url": "https://idp.test/k"}, "no key set"),
        ({"type": "shared_secret", "shared_secret": "x" * 40, "algorithms": ("RS256",)}, "`RS256`"),
        ({"discovery": False}, "jwks_url"),
        ({"jwks_url": "http://idp.test/keys"}, "https"),
        ({"jwks_url": "file:///etc/passwd"}, "https"),
        ({"jwks_url": "https://idp.test/k", "jwks_file": Path("/k")}, "not both"),
        ({"type": "google", "issuer": "https://accounts.google.com"}, "tenant_ids"),
        ({"type": "google", "issuer": "accounts.google.com", "tenant_ids": ("corp.test",)}, "short form"),
        ({"type": "entra", "tenant_ids": ("common",)}, "GUID"),
        ({"type": "entra", "issuer": "https://login.microsoftonline.com/{tid}/v2.0"}, "tenant_ids"),
        ({"issuer": "https://login.microsoftonline.com/{tid}/v2.0"}, "tid"),
        ({"subject_claim": "preferred_username"}, "must not identify"),
        ({"subject_claim": "upn"}, "must not identify"),
        ({"roles_claim": "a..b"}, "claim path"),
        ({"groups_claim": ""}, "claim path"),
        ({"tenant": "-"}, "reserved"),
        ({"tenant": " * "}, "reserved"),
        ({"tenant": ""}, "reserved"),
    ],
)
def test_configuration_that_accepts_too_much_ends_the_start(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_providers(settings(**changes))


def test_problem_names_the_provider_and_the_guide() -> None:
    with pytest.raises(ConfigError, match="identity provider `corp`") as refused:
        build_providers(settings(audiences=()))
    assert "docs/guides/identity.md" in str(refused.value)


def test_secret_is_never_in_the_error_or_the_repr() -> None:
    secret = "correct-horse-battery-staple-0123456789"
    (provider,) = build_providers(settings(type="shared_secret", shared_secret=secret))
    assert secret not in repr(provider)


def test_issuer_is_matched_exactly() -> None:
    table = ProviderTable([settings()])
    assert table.get("https://idp.test") is not None
    near = ["https://idp.test/", "https://IDP.test", "https://idp.test/x", "https://idp.tes", " https://idp.test", ""]
    assert [table.get(issuer) for issuer in near] == [None] * len(near)


def test_two_providers_cannot_share_an_issuer() -> None:
    with pytest.raises(ConfigError, match="share one issuer"):
        ProviderTable([settings(), settings(name="second")])


def test_two_providers_cannot_share_a_name() -> None:
    with pytest.raises(ConfigError, match="named `corp`"):
        ProviderTable([settings(), settings(issuer="https://other.test")])


def test_entra_template_gives_one_provider_a_directory() -> None:
    table = ProviderTable(
        [settings(type="entra", issuer="https://login.microsoftonline.com/{tid}/v2.0", tenant_ids=(TID, OTHER_TID))]
    )
    found = table.get(f"https://login.microsoftonline.com/{OTHER_TID}/v2.0")
    assert found is not None
    assert (found.directory, len(table)) == (OTHER_TID, 2)


def test_google_answers_to_both_spellings_and_keeps_one_issuer() -> None:
    table = ProviderTable([settings(type="google", issuer="https://accounts.google.com", tenant_ids=("corp.test",))])
    short, full = table.get("accounts.google.com"), table.get("https://accounts.google.com")
    assert short is full
    assert full is not None
    assert full.issuer == "https://accounts.google.com"


@pytest.mark.parametrize(
    ("kind", "roles", "scopes"),
    [
        ("keycloak", "realm_access.roles", "scope"),
        ("entra", "roles", "scp"),
        ("okta", "groups", "scp"),
        ("oidc", "roles", "scope"),
        ("rfc9068", "roles", "scope"),
    ],
)
def test_type_brings_its_claim_paths(kind: str, roles: str, scopes: str) -> None:
    (provider,) = build_providers(settings(type=kind))
    assert provider.roles is not None
    assert provider.scopes is not None
    assert (provider.roles.text, provider.scopes.text) == (roles, scopes)


def test_configured_path_beats_the_type() -> None:
    (provider,) = build_providers(settings(type="keycloak", roles_claim="roles", scopes_claim=None))
    assert provider.roles == ClaimPath("roles", ("roles",))
    assert provider.scopes is None


def test_shared_secret_defaults_to_hs256() -> None:
    (provider,) = build_providers(settings(type="shared_secret", shared_secret="x" * 32))
    assert provider.algorithms == {"HS256"}


@pytest.mark.parametrize(
    ("path", "claims", "found"),
    [
        ("roles", {"roles": [1]}, [1]),
        ("a.b", {"a": {"b": 2}}, 2),
        ("a.b", {"a.b": 2}, None),
        ("a.b", {"a": [{"b": 2}]}, None),
        ("a.b", {"a": "b"}, None),
        ("/resource_access/my.client/roles", {"resource_access": {"my.client": {"roles": ["r"]}}}, ["r"]),
        ("/a~1b/c~0d", {"a/b": {"c~d": 1}}, 1),
        ("https://corp.test/roles", {"https://corp.test/roles": ["r"]}, ["r"]),
    ],
)
def test_claim_path(path: str, claims: dict[str, Any], found: Any) -> None:
    assert ClaimPath.parse(path).find(claims) == found


def test_one_human_at_two_providers_is_warned_of_where_two_people_are_needed() -> None:
    named, nameless = settings(person_claim="employee_id"), settings(name="other")
    four_eyes = AccessSettings(four_eyes=True)

    def found(access: AccessSettings, *providers: ProviderSettings) -> tuple[str, ...]:
        return warnings_of_people(IdentitySettings(providers=providers), access)

    (sentence,) = found(four_eyes, named, nameless)
    assert sentence.endswith("set `person_claim` of `other`")
    assert (
        found(four_eyes, nameless) == found(four_eyes, named, named) == found(AccessSettings(), named, nameless) == ()
    )
