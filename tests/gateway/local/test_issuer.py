"""The development issuer: its key, its tokens, and that the identity service takes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gateway.audit.content_keys import parse_content_keys
from gateway.cli.token import app
from gateway.errors import ConfigError, Unauthenticated
from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.flow.values import Credential, Principal
from gateway.identity.service import IdentityService
from gateway.local.issuer import DevIssuer, api_key_pepper, content_keys, issuer_routes
from gateway.settings import IdentitySettings


async def authenticate(issuer: DevIssuer, token: str) -> Principal:
    clock = SystemClock()
    context = RequestContext(SystemIds().uuid7(), clock.now(), clock.monotonic_s(), "/v1/models")
    service = IdentityService(IdentitySettings(providers=(issuer.provider_settings(),)), clock=clock)
    await service.start()
    try:
        return await service.authenticate(Credential("authorization", token), context)
    finally:
        await service.close()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> DevIssuer:
    return DevIssuer.open(tmp_path_factory.mktemp("data"))


async def test_minted_token_becomes_the_principal_it_names(issuer: DevIssuer) -> None:
    token = issuer.mint("u-1042", ["analyst"], department="finanzas", tenant="banco", clearance="confidential")
    principal = await authenticate(issuer, token)
    assert (principal.subject, principal.tenant, principal.department) == ("u-1042", "banco", "finanzas")
    assert (principal.roles, principal.clearance) == (frozenset({"analyst"}), "confidential")


def test_key_file_is_private_to_its_owner(tmp_path: Path) -> None:
    DevIssuer.open(tmp_path)
    assert (tmp_path / "issuer/key.pem").stat().st_mode & 0o777 == 0o600


def test_key_survives_a_restart(tmp_path: Path) -> None:
    assert DevIssuer.open(tmp_path).jwks() == DevIssuer.open(tmp_path).jwks()


def test_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    DevIssuer.open(tmp_path)
    (tmp_path / "issuer/key.pem").chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        DevIssuer.open(tmp_path)


def test_api_key_secret_is_made_once_and_private(tmp_path: Path) -> None:
    first = api_key_pepper(tmp_path)
    assert len(first) >= 32
    assert (api_key_pepper(tmp_path), (tmp_path / "issuer/api-key-pepper").stat().st_mode & 0o777) == (first, 0o600)


def test_content_key_is_made_once_and_private(tmp_path: Path) -> None:
    first = content_keys(tmp_path)
    assert parse_content_keys(first, source="local").current == "local-1"
    assert (content_keys(tmp_path), (tmp_path / "issuer/content-keys").stat().st_mode & 0o777) == (first, 0o600)


def test_damaged_key_is_named_as_such(tmp_path: Path) -> None:
    DevIssuer.open(tmp_path)
    (tmp_path / "issuer/key.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match="damaged"):
        DevIssuer.open(tmp_path)


def test_parallel_first_starts_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        sets = list(pool.map(lambda _: DevIssuer.open(tmp_path).jwks()["keys"][0]["kid"], range(4)))
    assert len(set(sets)) == 1


async def test_token_of_another_installation_is_refused(issuer: DevIssuer, tmp_path: Path) -> None:
    stranger = DevIssuer.open(tmp_path)
    with pytest.raises(Unauthenticated) as refused:
        await authenticate(issuer, stranger.mint("u-1", ["platform-admin"]))
    assert refused.value.code == "unknown_key"


@pytest.mark.parametrize(
    ("changes", "found"),
    [({"ttl_s": 0}, "--ttl"), ({"ttl_s": 86_401}, "--ttl"), ({"clearance": "secret"}, "--clearance")],
)
def test_mint_refuses_what_the_gateway_would_not_take(issuer: DevIssuer, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        issuer.mint("u-1", ["employee"], **changes)


def test_mint_refuses_an_empty_subject(issuer: DevIssuer) -> None:
    with pytest.raises(ConfigError, match="--sub"):
        issuer.mint(" ", ["employee"])


def test_discovery_points_to_the_key_set(issuer: DevIssuer) -> None:
    client = TestClient(Starlette(routes=issuer_routes(issuer)))
    document = client.get("/local-issuer/.well-known/openid-configuration").json()
    assert document["issuer"] == issuer.issuer
    assert client.get(document["jwks_uri"]).json() == issuer.jwks()


def test_key_set_holds_no_private_member(issuer: DevIssuer) -> None:
    assert set(issuer.jwks()["keys"][0]) == {"kty", "n", "e", "kid", "use", "alg"}


def test_command_prints_only_the_token_on_stdout(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        app,
        ["mint", "--sub", "u-7", "--role", "employee", "--role", "auditor", "--data-dir", str(tmp_path), "--ttl", "60"],
    )
    claims = jwt.decode(run.stdout.strip(), options={"verify_signature": False})
    assert (claims["sub"], claims["roles"], claims["exp"] - claims["iat"]) == ("u-7", ["employee", "auditor"], 60)


def test_command_prints_json_when_asked(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["mint", "--sub", "u-7", "--role", "employee", "--data-dir", str(tmp_path), "--json"])
    assert json.loads(run.stdout)["expires_in"] == 3600
