"""Claims: audience, time, client, kind of token, and what becomes of them in the principal (threats T9, T10, T12)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.errors import GatewayError
from gateway.flow.values import Principal
from gateway.identity.claim_rules import check_claims, check_header_type
from gateway.identity.claims import principal_from
from gateway.identity.providers import Provider, build_providers
from tests.fakes.issuer import TestIssuer

TID = "11111111-1111-4111-8111-111111111111"
OID = "22222222-2222-4222-8222-222222222222"
ENTRA = {"type": "entra", "issuer": f"https://login.microsoftonline.com/{TID}/v2.0", "allowed_clients": ()}
ENTRA_V1 = {"type": "entra", "issuer": f"https://sts.windows.net/{TID}/", "allowed_clients": ()}
GOOGLE = {"type": "google", "issuer": "https://accounts.google.com", "tenant_ids": ("corp.test",)}
OKTA = {"type": "okta", "issuer": "https://corp.okta.com/oauth2/aus1", "allowed_clients": ()}
PLAIN = {"type": "oidc", "allowed_clients": ()}


def provider(**changes: Any) -> Provider:
    (built,) = build_providers(TestIssuer().provider(**changes))
    return built


def principal(settings: Any = None, **claims: Any) -> Principal:
    rules = provider(**(settings or {}))
    full = TestIssuer().claims(**claims)
    check_claims(rules, full, time.time())
    return principal_from(rules, full, fingerprint="f")


def code(settings: Any = None, **claims: Any) -> str:
    with pytest.raises(GatewayError) as refused:
        principal(settings, **claims)
    assert refused.value.status in {401, 403}
    return refused.value.code


def at(seconds: float) -> int:
    return int(time.time() + seconds)


# ------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": -31, "iat": -300}, "token_expired"),
        ({"exp": -600, "iat": -900}, "token_expired"),
        ({"nbf": 45}, "token_not_yet_valid"),
        ({"nbf": 600}, "token_not_yet_valid"),
        ({"iat": 45}, "token_not_yet_valid"),
        ({"iat": 0, "exp": 0}, "invalid_token"),
        ({"iat": 20, "exp": 10}, "invalid_token"),
        ({"iat": -10, "exp": 86_395}, "invalid_token"),
    ],
)
def test_time_outside_is_refused(claims: dict[str, int], expected: str) -> None:
    assert code(**{name: at(offset) for name, offset in claims.items()}) == expected


@pytest.mark.parametrize("claims", [{"exp": -20, "iat": -300}, {"nbf": 20}, {"iat": 20}, {"iat": -100, "exp": 86_000}])
def test_time_inside_the_leeway_is_accepted(claims: dict[str, int]) -> None:
    assert principal(**{name: at(offset) for name, offset in claims.items()}).subject == "u-1042"


@pytest.mark.parametrize("value", ["9999999999", True, None, [], {}, 10**18, 2**53, -(2**53), 1e300])
@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
def test_time_that_is_no_sane_number_is_refused(name: str, value: Any) -> None:
    assert code(**{name: value}) == "invalid_token"


@pytest.mark.parametrize("name", ["exp", "iat", "sub"])
def test_missing_claim_is_refused(name: str) -> None:
    assert code(**{name: ...}) == "invalid_token"


def test_fractional_times_are_numbers() -> None:
    assert principal(iat=time.time() - 0.5, exp=time.time() + 60.25).expires_at is not None


# ---------------------------------------------------------------------------------------- audience, client


@pytest.mark.parametrize("value", ["", "ai", "ai-gateway ", "AI-GATEWAY", [], ["account"], ["ai-gateway-dev"], ...])
def test_other_audience_is_refused(value: Any) -> None:
    assert code(aud=value) == "wrong_audience"


@pytest.mark.parametrize("value", [None, 5, True, {"ai-gateway": 1}, ["ai-gateway", 5], [["ai-gateway"]]])
def test_audience_of_the_wrong_shape_is_refused(value: Any) -> None:
    assert code(aud=value) == "invalid_token"


def test_unbounded_audience_list_is_refused() -> None:
    assert code(aud=["ai-gateway"] * 65) == "invalid_token"


def test_client_outside_the_list_is_refused() -> None:
    assert code(azp="rogue") == "client_not_allowed"


def test_client_is_needed_with_several_audiences() -> None:
    assert code(azp=..., aud=["ai-gateway", "account"]) == "client_not_allowed"


def test_client_may_be_required_always() -> None:
    assert code({"require_client": True}, azp=...) == "client_not_allowed"


@pytest.mark.parametrize("value", [5, None, "", ["chat-ui"], "a\nb", "a" * 257])
def test_client_of_the_wrong_shape_is_refused(value: Any) -> None:
    assert code(azp=value) == "invalid_token"


def test_bound_token_is_refused_unless_the_provider_allows_it() -> None:
    cnf = {"jkt": "x"}
    assert code(cnf=cnf) == "invalid_token"
    assert principal({"allow_unbound": True}, cnf=cnf).subject == "u-1042"


# -------------------------------------------------------------------------------------------- kind of token


@pytest.mark.parametrize("kind", ["ID", "Refresh", "Offline", "Logout", "id", ""])
def test_payload_type_other_than_access_is_refused(kind: str) -> None:
    assert code(typ=kind) == "wrong_token_type"


@pytest.mark.parametrize("mark", ["at_hash", "c_hash", "s_hash", "events"])
def test_marks_of_other_tokens_are_refused(mark: str) -> None:
    assert code(PLAIN, typ=..., **{mark: "x"}) == "wrong_token_type"


@pytest.mark.parametrize(
    "typ", ["dpop+jwt", "logout+jwt", "secevent+jwt", "token-introspection+jwt", "JOSE", "", "jwt "]
)
def test_header_type_of_another_profile_is_refused(typ: str) -> None:
    with pytest.raises(GatewayError) as refused:
        check_header_type(provider(), {"typ": typ})
    assert refused.value.code == "wrong_token_type"


@pytest.mark.parametrize("header", [{}, {"typ": "jwt"}, {"typ": "At+Jwt"}, {"typ": "APPLICATION/at+jwt"}])
def test_header_type_of_an_access_token_is_accepted_in_any_case(header: dict[str, str]) -> None:
    check_header_type(provider(), header)


@pytest.mark.parametrize("header", [{}, {"typ": "JWT"}])
def test_rfc9068_demands_its_own_header_type(header: dict[str, str]) -> None:
    with pytest.raises(GatewayError) as refused:
        check_header_type(provider(type="rfc9068"), header)
    assert refused.value.code == "wrong_token_type"


@pytest.mark.parametrize("missing", ["jti", "client_id"])
def test_rfc9068_demands_its_claims(missing: str) -> None:
    claims: dict[str, Any] = {"azp": ..., "jti": "j", "client_id": "chat-ui", "typ": ...}
    assert code({"type": "rfc9068"}, **{**claims, missing: ...}) == "invalid_token"


def test_rfc9068_token_without_a_person_is_a_service() -> None:
    who = principal({"type": "rfc9068"}, azp=..., jti="j", client_id="batch-svc", sub="batch-svc")
    assert (who.kind, who.credential_id) == ("service", "j")


# --------------------------------------------------------------------------------------------------- Entra


def entra(**claims: Any) -> dict[str, Any]:
    return {"ver": "2.0", "tid": TID, "oid": OID, "typ": ..., "realm_access": ..., **claims}


def test_entra_person_is_keyed_by_directory_and_object() -> None:
    who = principal(ENTRA, **entra(roles=["Analyst"], scp="Models.Read Chat.Write", uti="u1"))
    assert who.subject == f"{TID}:{OID}"
    assert (who.roles, who.scopes) == ({"Analyst"}, {"Models.Read", "Chat.Write"})
    assert (who.kind, who.credential_id) == ("user", "u1")


def test_entra_v1_token_names_its_client_appid() -> None:
    assert principal(ENTRA_V1, **entra(ver="1.0", azp=..., appid="app-1")).client_id == "app-1"


@pytest.mark.parametrize(("rules", "version"), [(ENTRA, "1.0"), (ENTRA_V1, "2.0"), (ENTRA, ...)])
def test_entra_version_must_fit_the_issuer(rules: dict[str, Any], version: Any) -> None:
    assert code(rules, **entra(ver=version)) == "invalid_token"


@pytest.mark.parametrize("tid", [OID, 5, ["x"]])
def test_entra_directory_must_fit_the_issuer(tid: Any) -> None:
    assert code(ENTRA, **entra(tid=tid)) == "wrong_issuer"


def test_entra_directory_must_be_there() -> None:
    assert code(ENTRA, **entra(tid=...)) == "invalid_token"


def test_entra_id_token_is_no_access_token() -> None:
    assert code(ENTRA, **entra(azp=..., nonce="n", roles=["Analyst"])) == "wrong_token_type"


@pytest.mark.parametrize(
    "overage",
    [
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "http://127.0.0.1:9/"}}},
        {"hasgroups": True},
        {"groups:src1": "http://127.0.0.1:9/"},
    ],
    ids=["claim_names", "hasgroups", "src1"],
)
def test_entra_groups_overage_is_403_with_a_way_out(overage: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as refused:
        principal(ENTRA, **entra(**overage))
    assert (refused.value.status, refused.value.code) == (403, "groups_overage")
    assert "app roles" in (refused.value.hint or "")


def test_entra_overage_can_be_accepted_where_groups_play_no_part() -> None:
    who = principal({**ENTRA, "accept_groups_overage": True}, **entra(hasgroups=True, roles=["Analyst"]))
    assert (who.roles, who.groups) == ({"Analyst"}, frozenset())


def test_entra_app_is_a_service() -> None:
    assert principal(ENTRA, **entra(idtyp="app", roles=["Models.Invoke.All"])).kind == "service"


def test_services_can_be_kept_out() -> None:
    assert code({**ENTRA, "allow_services": False}, **entra(idtyp="app")) == "client_not_allowed"


# ------------------------------------------------------------------------------------- Okta, Google, Keycloak


def test_okta_scopes_are_a_list_and_uid_is_the_person() -> None:
    who = principal(OKTA, azp=..., cid="0oa1", uid="00u1", scp=["openid", "models.use"], groups=["analyst"], typ=...)
    assert (who.subject, who.client_id, who.kind) == ("00u1", "0oa1", "user")
    assert (who.scopes, who.roles) == ({"openid", "models.use"}, {"analyst"})


def test_okta_client_credentials_are_a_service() -> None:
    assert principal(OKTA, azp=..., cid="0oa1", sub="0oa1", typ=...).kind == "service"


def test_okta_token_without_a_client_is_no_access_token() -> None:
    assert code(OKTA, azp=..., typ=...) == "wrong_token_type"


def google(**claims: Any) -> dict[str, Any]:
    person = {"hd": "corp.test", "email": "ana@corp.test", "email_verified": True}
    return {"typ": ..., "realm_access": ..., "at_hash": "x", **person, **claims}


def test_google_workspace_account_is_accepted() -> None:
    who = principal(GOOGLE, **google())
    assert (who.subject, who.roles, who.display) == ("u-1042", frozenset(), "ana@corp.test")


@pytest.mark.parametrize(
    "claims",
    [
        {"hd": ...},
        {"hd": "evil.test"},
        {"hd": "CORP.TEST"},
        {"hd": ["corp.test"]},
        {"email_verified": False},
        {"email_verified": "true"},
        {"email": "ana@evil.test"},
        {"email": "ana@corp.test.evil.test"},
        {"email": ...},
    ],
)
def test_google_account_that_is_not_surely_of_the_domain_is_refused(claims: dict[str, Any]) -> None:
    assert code(GOOGLE, **google(**claims)) == "invalid_token"


def test_google_service_account_needs_its_client_listed() -> None:
    robot = google(hd=..., email="bot@p.iam.gserviceaccount.com", azp="batch-svc")
    assert principal(GOOGLE, **robot).kind == "service"
    assert code({**GOOGLE, "allowed_clients": ()}, **robot) == "invalid_token"


def test_keycloak_service_account_is_a_service() -> None:
    assert principal(preferred_username="service-account-batch-svc", azp="batch-svc").kind == "service"


# ------------------------------------------------------------------------------------------ subject and roles


@pytest.mark.parametrize(
    "value", ["", " ", "\t", "a\nb", "a\x00b", "a\x7fb", "a\u202eb", "a" * 257, 5, None, ["a"], ...]
)
def test_subject_of_the_wrong_shape_is_refused(value: Any) -> None:
    assert code(sub=value) == "invalid_token"


def test_subject_may_be_a_verified_email_when_configured() -> None:
    rules = {"subject_claim": "email"}
    assert principal(rules, email="ana@corp.test", email_verified=True).subject == "ana@corp.test"
    assert code(rules, email="ana@corp.test", email_verified="yes") == "invalid_token"
    assert code(rules, email_verified=True) == "invalid_token"


def test_email_is_no_identity_by_default() -> None:
    assert principal(email="ceo@corp.test", email_verified=False).subject == "u-1042"


def test_unverified_email_is_not_even_displayed() -> None:
    assert principal(email="ceo@corp.test", email_verified=False).display is None


@pytest.mark.parametrize(
    "roles", ["admin", {"admin": 1}, 5, ["ok", 5], ["ok", None], ["a\nb"], [""], ["a" * 257], ["r"] * 513]
)
def test_roles_of_the_wrong_shape_refuse_the_token(roles: Any) -> None:
    assert code(realm_access={"roles": roles}) == "invalid_token"


@pytest.mark.parametrize("claims", [{"realm_access": ...}, {"realm_access": {}}, {"realm_access": "x"}])
def test_absent_roles_are_no_roles(claims: dict[str, Any]) -> None:
    assert principal(**claims).roles == frozenset()


def test_roles_come_from_the_configured_path_only() -> None:
    elsewhere = {"roles": ["platform-admin"], "groups": ["platform-admin"], "resource_access": {"a": {"roles": ["x"]}}}
    assert principal(**elsewhere, scope="platform-admin").roles == {"analyst"}


def test_wildcard_role_is_only_a_name() -> None:
    assert principal(realm_access={"roles": ["*", "admin*"]}).roles == {"*", "admin*"}


def test_role_map_gives_only_mapped_roles() -> None:
    who = principal(
        {"role_map": {"/ventas/jefes": ("analyst", "auditor"), "x": ("employee",)}},
        realm_access={"roles": ["/ventas/jefes", "platform-admin"]},
    )
    assert who.roles == {"analyst", "auditor"}


def test_scope_string_is_split_where_scopes_belong() -> None:
    assert principal(scope="openid models.use").scopes == {"openid", "models.use"}


def test_department_tenant_and_clearance_follow_their_paths() -> None:
    who = principal(
        {"department_claim": "org.area", "tenant_claim": "tenant", "clearance_claim": "clearance"},
        org={"area": "Tesorería"},
        tenant="banco-sur",
        clearance="confidential",
    )
    assert (who.department, who.tenant, who.clearance) == ("Tesorería", "banco-sur", "confidential")


def test_without_paths_nothing_is_guessed() -> None:
    who = principal(department="finance", tenant="other", clearance="restricted")
    assert (who.department, who.tenant, who.clearance) == (None, "default", None)


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ({"tenant_claim": "tenant"}, {}),
        ({"tenant_claim": "tenant"}, {"tenant": ["a"]}),
        ({"tenant_claim": "tenant"}, {"tenant": "-"}),  # nobody's tenant, which every auditor reads
        ({"tenant_claim": "tenant"}, {"tenant": " - "}),
        ({"tenant_claim": "tenant"}, {"tenant": "*"}),
        ({"tenant_claim": "tenant"}, {"tenant": "(many)"}),
        ({"department_claim": "d"}, {"d": ["a", "b"]}),
        ({"clearance_claim": "c"}, {"c": "top-secret"}),
        ({"clearance_claim": "c"}, {"c": "RESTRICTED"}),
    ],
)
def test_configured_attribute_of_the_wrong_shape_refuses_the_token(
    path: dict[str, Any], claims: dict[str, Any]
) -> None:
    assert code(path, **claims) == "invalid_token"


@pytest.mark.parametrize("value", [5, "", "a\nb", "j" * 257])
def test_token_id_of_the_wrong_shape_is_refused(value: Any) -> None:
    assert code(jti=value) == "invalid_token"


def test_principal_names_the_configured_provider_for_every_directory() -> None:
    settings = TestIssuer().provider(
        type="entra", issuer="https://login.microsoftonline.com/{tid}/v2.0", tenant_ids=(TID, OID), allowed_clients=()
    )
    names = set()
    for rules in build_providers(settings):
        claims = TestIssuer(issuer=rules.issuer).claims(**entra(tid=rules.directory))
        names.add(principal_from(rules, claims, fingerprint="f").provider)
    assert names == {"corp"}


# ------------------------------------------------------------------------------------- people and machines


@pytest.mark.parametrize(
    ("settings", "claims"),
    [
        pytest.param(ENTRA, {"idtyp": ..., "scp": ..., "sub": OID}, id="entra without the optional idtyp"),
        pytest.param(PLAIN, {"sub": "chat-ui", "azp": "chat-ui"}, id="a subject that is its client"),
        pytest.param(PLAIN, {"gty": "client-credentials"}, id="a grant without a person"),
        pytest.param({}, {"clientHost": "10.0.0.7"}, id="keycloak without the name of the account"),
    ],
)
def test_an_applications_own_token_is_never_a_person(settings: dict[str, Any], claims: dict[str, Any]) -> None:
    base = entra() if settings is ENTRA else {}
    assert principal(settings, **{**base, **claims}).kind == "service"


def test_one_human_has_one_digest_at_every_issuer() -> None:
    here = principal({"person_claim": "employee_id"}, employee_id="E-17")
    there = principal({**PLAIN, "person_claim": "staff.number"}, staff={"number": " e-17 "})
    assert here.person == there.person
    assert here.person is not None
    assert "e-17" not in here.person
    assert principal({"person_claim": "employee_id"}, employee_id="E-18").person != here.person


def test_an_address_names_a_human_only_when_it_is_verified() -> None:
    named = {"person_claim": "email"}
    assert principal(named, email="ana@corp.test", email_verified=False).person is None
    assert principal(named, email="ana@corp.test", email_verified=True).person is not None


def test_a_token_without_the_claim_names_nobody_and_is_accepted() -> None:
    assert principal({"person_claim": "employee_id"}).person is None


def test_a_person_claim_of_the_wrong_shape_refuses_the_token() -> None:
    assert code({"person_claim": "employee_id"}, employee_id=["E-17"]) == "invalid_token"


def test_one_role_as_a_text_is_told_what_its_shape_should_be() -> None:
    with pytest.raises(GatewayError) as refused:
        principal({**PLAIN, "roles_claim": "roles"}, roles="analyst")
    assert refused.value.message == "The claim `roles` is a text where a list of names belongs."
    assert "a list, even of one name" in (refused.value.hint or "")
