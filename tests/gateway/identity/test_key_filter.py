"""Which keys of a set are taken, and why the others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.identity.algorithms import ASYMMETRIC
from gateway.identity.key_filter import RefusedKey, filter_keys, has_roca_fingerprint, load_key, secret_key
from tests.fakes.issuer import private_key, public_jwk

USUAL = frozenset({"RS256", "PS256", "ES256", "EdDSA", "Ed25519"})


def jwk(algorithm: str = "RS256", kid: str = "k", **more: Any) -> dict[str, Any]:
    return {**public_jwk(private_key(algorithm), kid, algorithm), **more}


def reason(entry: Any, **options: Any) -> str:
    given_options: dict[str, Any] = {"algorithms": USUAL, "default_algorithm": None, **options}
    with pytest.raises(RefusedKey) as refused:
        load_key(entry, **given_options)
    return str(refused.value)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_usual_keys_are_taken(algorithm: str) -> None:
    key = load_key(jwk(algorithm), algorithms=USUAL, default_algorithm=None)
    assert (key.kid, key.algorithm) == ("k", algorithm)


def test_fully_specified_ed25519_is_the_same_algorithm_as_eddsa() -> None:
    entry = {**jwk("EdDSA"), "alg": "Ed25519"}
    assert load_key(entry, algorithms=USUAL, default_algorithm=None).algorithm == "EdDSA"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use": "enc"}, "use is not sig"),
        ({"use": None}, "use is not sig"),
        ({"key_ops": ["sign"]}, "key_ops has no verify"),
        ({"key_ops": "verify"}, "key_ops has no verify"),
        ({"alg": "ES256"}, "alg does not fit"),
        ({"alg": "HS256"}, "not allowed"),
        ({"alg": "RS384"}, "not allowed"),
        ({"alg": "rs256"}, "alg is unknown"),
        ({"alg": 5}, "alg is unknown"),
        ({"d": "AQAB"}, "private key material"),
        ({"k": "AQAB"}, "private key material"),
        ({"e": "AQ"}, "exponent"),
        ({"e": "Aw"}, "exponent"),
        ({"e": "AQAA"}, "exponent"),
        ({"e": "!!"}, "e is not base64url"),
        ({"n": 5}, "n is not base64url"),
        ({"n": "AQAB"}, "modulus of 17 bits"),
        ({"kid": 5}, "kid is not a short string"),
        ({"kid": "k" * 257}, "kid is not a short string"),
        ({"kty": "oct"}, "not an RSA, EC or OKP key"),
        ({"kty": None}, "not an RSA, EC or OKP key"),
    ],
)
def test_rsa_key_is_refused(change: dict[str, Any], expected: str) -> None:
    assert expected in reason({**jwk(), **change})


def test_short_rsa_key_is_refused() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    assert "1024 bits" in reason(public_jwk(weak, "k", "RS256"))


def test_roca_shape_is_seen() -> None:
    generator = 1
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 97, 103, 107):
        generator *= prime
    for prime in (83, 89, 101, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167):
        generator *= prime
    product = (generator * 12345 + pow(65537, 7, generator)) * (generator * 54321 + pow(65537, 11, generator))
    assert has_roca_fingerprint(product)


def test_ordinary_moduli_do_not_look_like_roca() -> None:
    moduli = [private_key("RS256", number).public_key().public_numbers().n for number in range(3)]
    assert not any(has_roca_fingerprint(n) for n in moduli)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"crv": "P-384"}, "alg does not fit"),
        ({"crv": "secp256k1", "alg": None}, "curve is not supported"),
        ({"x": "AQAB"}, "wrong length"),
        ({"y": "A" * 43}, "not on the curve"),
    ],
)
def test_ec_key_is_refused(change: dict[str, Any], expected: str) -> None:
    entry = {**jwk("ES256"), **change}
    assert expected in reason({name: value for name, value in entry.items() if value is not None})


def test_okp_key_of_the_wrong_length_is_refused() -> None:
    assert "Ed25519" in reason({**jwk("EdDSA"), "x": "AQAB"})


def test_rsa_key_without_alg_needs_a_configured_algorithm() -> None:
    entry = {name: value for name, value in jwk().items() if name != "alg"}
    assert "default_key_algorithm" in reason(entry)
    assert load_key(entry, algorithms=USUAL, default_algorithm="PS256").algorithm == "PS256"


def test_ec_key_without_alg_gets_the_only_one_of_its_curve() -> None:
    key = ec.generate_private_key(ec.SECP521R1())
    entry = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k"}
    assert load_key(entry, algorithms=ASYMMETRIC, default_algorithm="RS256").algorithm == "ES512"


def test_default_algorithm_of_another_family_does_not_help() -> None:
    entry = {name: value for name, value in jwk().items() if name != "alg"}
    assert "default_key_algorithm" in reason(entry, default_algorithm="ES256")


def test_key_marked_for_another_issuer_is_refused() -> None:
    template = "https://login.microsoftonline.com/{tenantid}/v2.0"
    issuer = "https://login.microsoftonline.com/11111111-1111-4111-8111-111111111111/v2.0"
    assert "another issuer" in reason(jwk(issuer="https://sts.windows.net/x/"), issuer=issuer)
    assert load_key(jwk(issuer=template), algorithms=USUAL, default_algorithm=None, issuer=issuer).kid == "k"


def test_one_bad_key_does_not_take_the_good_ones_with_it() -> None:
    found = filter_keys(
        {"keys": [jwk(kid="good"), jwk(kid="enc", use="enc"), {"kty": "oct", "k": "AA", "kid": "s"}, "junk", 5, None]},
        algorithms=USUAL,
        default_algorithm=None,
    )
    assert set(found.named) == {"good"}
    assert {finding.kid for finding in found.findings if finding.alert} == {"s"}


def test_duplicate_kid_drops_both_keys() -> None:
    entries = [jwk("RS256", "same"), jwk("ES256", "same"), jwk("ES256", "other")]
    found = filter_keys({"keys": entries}, algorithms=USUAL, default_algorithm=None)
    assert set(found.named) == {"other"}


def test_too_many_keys_are_no_key_set() -> None:
    found = filter_keys({"keys": [jwk(kid=str(i)) for i in range(65)]}, algorithms=USUAL, default_algorithm=None)
    assert len(found) == 0


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {}}, {"keys": "x"}])
def test_other_documents_are_no_key_set(document: dict[str, Any]) -> None:
    assert len(filter_keys(document, algorithms=USUAL, default_algorithm=None)) == 0


def test_secret_shorter_than_its_hash_is_refused() -> None:
    with pytest.raises(RefusedKey, match="64 bytes"):
        secret_key(b"x" * 63, "HS512")


def test_private_half_of_a_key_never_enters_the_set() -> None:
    private = RSAAlgorithm.to_jwk(private_key("RS256"), as_dict=True)
    assert "private key material" in reason({**private, "kid": "k", "key_ops": ["sign", "verify"]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abYZ-_=é", max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abyz", max_size=8), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.sampled_from(["kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y", "issuer", "d"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.sampled_from(["RS256", "ES256", "EdDSA"]), changes=st.dictionaries(MEMBERS, JSON, max_size=4))
def test_no_entry_whatsoever_breaks_the_filter(base: str, changes: dict[str, Any]) -> None:
    entry = {**jwk(base), **changes}
    json.dumps(entry)
    found = filter_keys({"keys": [entry]}, algorithms=USUAL, default_algorithm=None, issuer="https://i")
    assert len(found) + len(found.findings) == 1
