"""The project's claims matrix: each row is signed, sent through the whole service, and must end as stated."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.errors import GatewayError
from gateway.flow.context import RequestContext, SystemClock
from gateway.flow.values import Credential
from gateway.identity.service import IdentityService
from gateway.settings import IdentitySettings, ProviderSettings
from tests.fakes.issuer import TestIssuer, private_key, public_jwk, raw_token

LINES = (Path(__file__).parents[2] / "data/jwt/claims_matrix.jsonl").read_text(encoding="utf-8").splitlines()
CONFIG = json.loads(LINES[0])["config"]
ROWS = [json.loads(line) for line in LINES[1:]]
FORBIDDEN = {"client_not_allowed", "groups_overage"}
_NOW = re.compile(r"NOW(F|STR)?([+-][\d.]+)?")


def resolve(value: Any, now: int) -> Any:
    """`NOW+300` and its kin become times, at any depth."""
    if isinstance(value, str) and (found := _NOW.fullmatch(value)):
        kind, offset = found.groups()
        moment = now + float(offset or 0)
        return moment if kind == "F" else str(int(moment)) if kind == "STR" else int(moment)
    if isinstance(value, dict):
        return {name: resolve(item, now) for name, item in value.items()}
    return value


def payload_of(row: dict[str, Any], now: int) -> bytes:
    if "raw_payload" in row:
        text = row["raw_payload"].replace("NOW+300", str(now + 300)).replace("NOW", str(now))
    elif "raw_payload_gen" in row:
        text = '{"a":' + "[" * 50000 + "]" * 50000 + "}"
    else:
        claims = {**CONFIG["base_claims"], **row.get("claims", {})}
        claims = {name: value for name, value in claims.items() if name not in row.get("drop", ())}
        if "claims_gen" in row:
            claims["roles"] = [f"r{i}" for i in range(20000)]
        text = json.dumps(resolve(claims, now))
    return bytes.fromhex(row.get("payload_prefix_hex", "")) + text.encode(row.get("payload_encoding", "utf-8"))


def header_of(row: dict[str, Any]) -> bytes:
    if "raw_header" in row:
        return row["raw_header"].encode()
    merged = {**CONFIG["base_header"], **row.get("header", {})}
    return json.dumps({name: value for name, value in merged.items() if value is not None}).encode()


def signed(row: dict[str, Any]) -> str:
    now = int(time.time())
    header, payload = header_of(row), payload_of(row, now)
    main = private_key("RS256")
    public = main.public_key()
    how = row.get("sign", "k1")
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    ways: dict[str, tuple[str, Any]] = {
        "k1": ("RS256", main),
        "empty": ("none", None),
        "hmac:public_pem": ("HS256", pem),
        "hmac:jwk_json": ("HS256", json.dumps(public_jwk(main, "k1", "RS256")).encode()),
        "attacker": ("RS256", private_key("RS256", 9)),
        "ps256:k1": ("PS256", main),
        "k-enc": ("RS256", private_key("RS256", 1)),
        "k2": ("RS256", private_key("RS256", 2)),
    }
    token = raw_token(header, payload, *ways[how])
    return mutated(row.get("mutate"), token, header, payload, main)


def mutated(how: str | None, token: str, header: bytes, payload: bytes, key: Any) -> str:
    if how is None:
        return token
    if how.startswith("append"):
        return token + ("==" if "==" in how else ".x")
    if how.startswith("re-sign"):
        padded = base64.urlsafe_b64encode(payload + b" " * (1 - len(payload) % 3))
        from jwt.algorithms import RSAAlgorithm

        signing_input = base64.urlsafe_b64encode(header).rstrip(b"=") + b"." + padded
        assert b"=" in padded
        signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(signing_input, key)
        return (signing_input + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()
    if how == "swap signature":
        other = raw_token(header, payload.replace(b"analyst", b"auditor"), "RS256", key)
        return token.rpartition(".")[0] + "." + other.rpartition(".")[2]
    assert how == "any compact JWE"
    return "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.AAAA.AAAA.AAAA.AAAA"


def settings_for(row: dict[str, Any]) -> IdentitySettings:
    """The configuration line of the matrix, with the type of provider that the row names."""
    kind = row.get("provider", "keycloak")
    changes: dict[str, Any] = {}
    if kind == "google":
        changes = {"issuer": "https://accounts.google.com", "tenant_ids": ("corp.test",)}
    if kind == "entra":
        changes = {"tenant_ids": ("11111111-1111-4111-8111-111111111111",)}
    if "subject_claim=email" in row.get("note", ""):
        changes["subject_claim"] = "email"
    base: dict[str, Any] = {
        "name": "corp",
        "type": kind,
        "issuer": CONFIG["issuer"],
        "audiences": CONFIG["audiences"],
        "algorithms": CONFIG["algorithms"],
        "leeway_s": CONFIG["leeway_s"],
        "max_lifetime_s": CONFIG["max_lifetime_s"],
        "allowed_clients": CONFIG["allowed_azp"],
    }
    provider = ProviderSettings(**{**base, **changes})
    return IdentitySettings(providers=(provider,), max_token_bytes=CONFIG["max_token_bytes"])


def matrix_issuer(row: dict[str, Any]) -> TestIssuer:
    issuer = TestIssuer.with_keys(k1="RS256")
    issuer.extra_jwks = [public_jwk(private_key("RS256", 1), "k-enc", "RSA-OAEP", use="enc")]
    if row.get("note", "").startswith("one key"):
        issuer.extra_jwks = []
    return issuer


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['id']} {row['name']}" for row in ROWS])
async def test_matrix_row(row: dict[str, Any], context: RequestContext) -> None:
    issuer = matrix_issuer(row)
    service = IdentityService(settings_for(row), clock=SystemClock(), key_sources={"corp": issuer})
    await service.start()
    try:
        if row.get("scenario") == "rotate-in":
            issuer.add("k2", "RS256", 2)
        credential = Credential("authorization", signed(row))
        if row["expect"] == "accept":
            principal = await service.authenticate(credential, context)
            assert principal.subject
            return
        with pytest.raises(GatewayError) as refused:
            await service.authenticate(credential, context)
        assert (refused.value.status, refused.value.code) == (403 if row["code"] in FORBIDDEN else 401, row["code"])
    finally:
        await service.close()


def test_matrix_is_complete() -> None:
    assert len(ROWS) == 68
