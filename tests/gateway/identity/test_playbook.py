"""The attacks of the jwt_tool playbook, and threats T1 to T5: every one ends in 401, and no address is ever asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.api.http.credentials import read_credential
from gateway.errors import AmbiguousCredentials, NotPermitted, Unauthenticated
from gateway.flow.values import Credential
from gateway.identity.service import IdentityService
from tests.fakes.issuer import TestIssuer, private_key, public_jwk, raw_token
from tests.gateway.identity.conftest import Authenticate

SQL = "x' UNION SELECT '1';--"
FORCED = [None, True, False, "text", 0]
COMMON_PASSWORDS = [
    "",
    "secret",
    "password",
    "123456",
    "admin",
    "changeme",
    "your-256-bit-secret",
    "jwt",
    "key",
    "test",
]
CLAIM_NAMES = (
    "iss sub aud azp jti typ nonce acr amr sid scope email picture profile website client_id tid oid uid cid groups "
    "roles name preferred_username upn hd ver idtyp appid wids scp realm_access resource_access cnf act may_act events "
    "locale zoneinfo address phone_number updated_at auth_time at_hash c_hash _claim_names _claim_sources jku jwk x5u "
    "redirect_uri entitlements tenant department clearance"
)


class Canary:
    """A listener that must never hear anything."""

    def __init__(self) -> None:
        self.visits = 0

    async def visited(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.close()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    heard = Canary()
    server = await asyncio.start_server(heard.visited, "127.0.0.1", 0)
    heard.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/canary"  # type: ignore[attr-defined]
    yield heard
    server.close()
    await server.wait_closed()


async def code_of(authenticate: Authenticate, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        await authenticate(token)
    assert refused.value.status == 401
    assert refused.value.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token"')
    return refused.value.code


# ------------------------------------------------------------------------------------------ T1, T2: channels


@pytest.mark.parametrize("token", ["", ".", "..", "a.b", "a.b.c", "' OR '1'='1", "x" * 20_000, "a.b.c.d", "é.b.c"])
async def test_malformed_credential_is_an_invalid_token(authenticate: Authenticate, token: str) -> None:
    assert await code_of(authenticate, token) == "invalid_token"


def test_absent_credential_is_named_and_challenged_without_an_error() -> None:
    with pytest.raises(Unauthenticated) as refused:
        read_credential([(b"host", b"gateway")])
    assert (refused.value.code, refused.value.headers["WWW-Authenticate"]) == ("missing_token", "Bearer")


def test_two_authorization_headers_are_ambiguous() -> None:
    with pytest.raises(AmbiguousCredentials):
        read_credential([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer a"), (b"api-key", b"b")],
        [(b"x-api-key", b"a"), (b"api-key", b"b")],
        [(b"api-key", b"a"), (b"api-key", b"b")],
        [(b"authorization", b"Basic a"), (b"api-key", b"a")],
        [(b"authorization", b"Bearer a"), (b"api-key", b"a"), (b"x-api-key", b"A")],
        [(b"authorization", b"Bearer a"), (b"api-key", b"a ")],
    ],
)
def test_two_different_credentials_are_ambiguous(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(AmbiguousCredentials):
        read_credential(headers)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer a"), (b"api-key", b"a")],
        [(b"x-api-key", b"a"), (b"authorization", b"bearer a")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer a")],
        [(b"authorization", b"Bearer a"), (b"api-key", b""), (b"x-api-key", b" ")],
    ],
)
def test_copies_and_empty_channels_leave_nothing_to_choose(headers: list[tuple[bytes, bytes]]) -> None:
    assert read_credential(headers) == Credential(channel="authorization", value="a")


@pytest.mark.parametrize("nothing", [b"", b"Bearer", b"Bearer "])
def test_an_empty_authorization_does_not_hide_a_key(nothing: bytes) -> None:
    found = read_credential([(b"authorization", nothing), (b"x-api-key", b"k")])
    assert found == Credential(channel="x-api-key", value="k")


@pytest.mark.parametrize("value", [b"Basic dTpw", b"Bearer", b"Bearer ", b"Bearer  a", b"", b"Bearer a b "])
def test_wrong_scheme_is_refused(value: bytes) -> None:
    with pytest.raises(Unauthenticated):
        read_credential([(b"authorization", value)])


# --------------------------------------------------------------------------------------------- signatures


async def test_original_token_still_works_after_bad_ones(issuer: TestIssuer, authenticate: Authenticate) -> None:
    token = issuer.token()
    for bad in (token[:-4], token[:-4] + "AAAA", token.rpartition(".")[0] + "."):
        await code_of(authenticate, bad)
    assert (await authenticate(token)).subject == "u-1042"


async def test_signature_cut_by_four_characters_is_refused(issuer: TestIssuer, authenticate: Authenticate) -> None:
    assert await code_of(authenticate, issuer.token()[:-4]) == "invalid_token"


@pytest.mark.parametrize("signature", ["", "AA", "AAAAAAAAAAAAAAAA"])
async def test_null_signature_is_refused(issuer: TestIssuer, authenticate: Authenticate, signature: str) -> None:
    token = issuer.token().rpartition(".")[0] + "." + signature
    assert await code_of(authenticate, token) == "invalid_token"


@pytest.mark.parametrize("kid", ["e1", "p1", "d1"])
async def test_psychic_zero_signature_is_refused(issuer: TestIssuer, authenticate: Authenticate, kid: str) -> None:
    token = issuer.token(kid).rpartition(".")[0] + "." + "A" * 86
    assert await code_of(authenticate, token) == "invalid_token"


# --------------------------------------------------------------------------------------------- T3: algorithm


@pytest.mark.parametrize("spelling", ["none", "None", "NONE", "nOnE"])
@pytest.mark.parametrize("signature", ["", "AAAA"])
async def test_alg_none_is_refused_in_every_spelling(
    issuer: TestIssuer, authenticate: Authenticate, spelling: str, signature: str
) -> None:
    token = issuer.token(header={"alg": spelling}).rpartition(".")[0] + "." + signature
    assert await code_of(authenticate, token) == "alg_not_allowed"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("form", ["pem", "der", "jwk", "jwks", "modulus"])
async def test_key_confusion_is_refused_without_arithmetic(
    issuer: TestIssuer, authenticate: Authenticate, algorithm: str, form: str
) -> None:
    public = private_key("RS256").public_key()
    jwk = public_jwk(private_key("RS256"), "k1", "RS256")
    secret = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(jwk).encode(),
        "jwks": json.dumps(issuer.jwks()).encode(),
        "modulus": jwk["n"].encode(),
    }[form]
    header = json.dumps({"alg": algorithm, "typ": "JWT", "kid": "k1"}).encode()
    token = raw_token(header, json.dumps(issuer.claims()).encode(), algorithm, secret)
    assert await code_of(authenticate, token) == "alg_not_allowed"


@pytest.mark.parametrize("password", COMMON_PASSWORDS)
async def test_common_hmac_password_is_refused(issuer: TestIssuer, authenticate: Authenticate, password: str) -> None:
    header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k1"}).encode()
    token = raw_token(header, json.dumps(issuer.claims()).encode(), "HS256", password.encode())
    assert await code_of(authenticate, token) == "alg_not_allowed"


@pytest.mark.parametrize(("kid", "algorithm"), [("k1", "PS256"), ("p1", "RS256"), ("e1", "RS256"), ("d1", "ES256")])
async def test_header_algorithm_must_be_the_keys(
    issuer: TestIssuer, authenticate: Authenticate, kid: str, algorithm: str
) -> None:
    token = issuer.token(kid, header={"alg": algorithm})
    assert await code_of(authenticate, token) == "alg_not_allowed"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "ES384", "ES512", "RS1", "ES256K", "RSA-OAEP", "dir", ""])
async def test_algorithm_outside_the_list_is_refused(
    issuer: TestIssuer, authenticate: Authenticate, algorithm: str
) -> None:
    assert await code_of(authenticate, issuer.token(header={"alg": algorithm})) == "alg_not_allowed"


# ------------------------------------------------------------------------------------------ T4: own key material


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c", "x5t", "x5t#S256"])
async def test_own_key_material_in_the_header_is_never_used(
    issuer: TestIssuer, authenticate: Authenticate, canary: Any, member: str
) -> None:
    attacker = private_key("RS256", 9)
    value: Any = {"jwk": public_jwk(attacker, "evil", "RS256"), "x5c": ["MIIB"]}.get(member, canary.url)
    token = issuer.token(header={"kid": "evil", member: value}, key=attacker)
    assert await code_of(authenticate, token) == "unknown_key"
    assert canary.visits == 0


async def test_embedded_jwk_does_not_replace_the_key_of_a_known_kid(
    issuer: TestIssuer, authenticate: Authenticate
) -> None:
    attacker = private_key("RS256", 9)
    token = issuer.token(header={"jwk": public_jwk(attacker, "k1", "RS256")}, key=attacker)
    assert await code_of(authenticate, token) == "invalid_token"


# ------------------------------------------------------------------------------------------------- T5: kid


@pytest.mark.parametrize(
    "kid",
    ["", "../../dev/null", "/dev/null", "/invalid_path", "|sleep 10", SQL, "k1\x00", "k1 ", "K1", "é", "__class__"],
)
async def test_kid_is_only_a_dictionary_key(issuer: TestIssuer, authenticate: Authenticate, kid: str) -> None:
    assert await code_of(authenticate, issuer.token(header={"kid": kid})) in {"unknown_key", "invalid_token"}


@pytest.mark.parametrize("kid", [["k1"], {"a": 1}, 7, True, "k" * 10_240, "k" * 257])
async def test_kid_of_the_wrong_shape_is_an_invalid_token(
    issuer: TestIssuer, authenticate: Authenticate, kid: Any
) -> None:
    assert await code_of(authenticate, issuer.token(header={"kid": kid})) == "invalid_token"


# --------------------------------------------------------------------------------------------- forced values


@pytest.mark.parametrize("value", FORCED, ids=repr)
@pytest.mark.parametrize("name", ["alg", "kid", "typ"])
async def test_forced_header_value_never_gets_in(
    issuer: TestIssuer, authenticate: Authenticate, name: str, value: Any
) -> None:
    await code_of(authenticate, issuer.token(header={name: value}))


@pytest.mark.parametrize("value", FORCED, ids=repr)
@pytest.mark.parametrize("name", ["crit", "b64", "zip", "cty"])
async def test_unsupported_header_member_is_refused_whatever_its_value(
    issuer: TestIssuer, authenticate: Authenticate, name: str, value: Any
) -> None:
    assert await code_of(authenticate, issuer.token(header={name: value})) == "invalid_token"


@pytest.mark.parametrize("value", FORCED, ids=repr)
@pytest.mark.parametrize("name", ["iss", "aud", "exp", "iat", "sub"])
async def test_forced_claim_value_never_becomes_another_identity(
    issuer: TestIssuer, authenticate: Authenticate, name: str, value: Any
) -> None:
    token = issuer.token(**{name: value})
    if (name, value) == ("sub", "text"):
        assert (await authenticate(token)).subject == "text"
        return
    await code_of(authenticate, token)


@pytest.mark.parametrize("name", CLAIM_NAMES.split())
async def test_address_in_a_claim_is_never_visited(
    issuer: TestIssuer, authenticate: Authenticate, canary: Any, name: str
) -> None:
    with contextlib.suppress(Unauthenticated, NotPermitted):
        await authenticate(issuer.token(**{name: canary.url}))
    assert canary.visits == 0


async def test_own_key_material_is_reported_once_verified(
    issuer: TestIssuer, authenticate: Authenticate, caplog: pytest.LogCaptureFixture
) -> None:
    await authenticate(issuer.token(header={"jku": "https://attacker.test/keys"}))
    assert "members=jku" in caplog.text
    assert "attacker.test" not in caplog.text


async def test_refusals_are_counted_by_code(
    issuer: TestIssuer, service: IdentityService, authenticate: Authenticate
) -> None:
    for _ in range(3):
        await code_of(authenticate, issuer.token(aud="other"))
    assert service.status().refusals == {"wrong_audience": 3}


async def test_refused_credential_is_never_cached(
    issuer: TestIssuer, service: IdentityService, authenticate: Authenticate
) -> None:
    await code_of(authenticate, issuer.token(aud="other"))
    assert service.status().cache_entries == 0


async def test_errors_and_logs_never_hold_the_token(
    issuer: TestIssuer, authenticate: Authenticate, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(header={"kid": "evil", "jku": "https://attacker.test"}, aud="x")
    with pytest.raises(Unauthenticated) as refused:
        await authenticate(token)
    shown = f"{refused.value} {refused.value.detail} {refused.value.hint} {caplog.text}"
    assert not any(part in shown for part in token.split("."))
