"""Nothing that opens a door leaves by another: no secret in logs, errors, headers, metrics, audit or spool."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import generate_latest
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from gateway import errors
from gateway.api.http.dialects import OPENAI
from gateway.errors import GatewayError
from tests.fakes.stage import Stage, _connect, apart

PATH = "/v1/chat/completions"
PROMPT = "la-clave-de-la-caja-es-4711"
PEPPER = "pimienta-" * 5
UPSTREAM_KEY = "up-secret-key"


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    return {"identity": {"api_key_pepper": SecretStr(PEPPER)}}


def subclasses(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in subclasses(child))]


def test_no_secret_leaves_by_any_door(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="esclusa")
    good = stage.token(sub="u-secret")
    expired = good[:-20] + "A" * 20
    body = {"model": "mini", "messages": [{"role": "user", "content": PROMPT}]}
    admin = stage.headers("security", "analyst", sub="u-sec")
    account = httpx2.post(
        f"{stage.url}/admin/v1/service-accounts", json={"name": "nightly", "roles": ["analyst"]}, headers=admin
    ).json()
    key = httpx2.post(
        f"{stage.url}/admin/v1/service-accounts/{account['id']}/keys", json={"name": "ci"}, headers=admin
    ).json()["key"]

    answers = []
    for credential in (good, expired, key, key[:-4] + "AAAA", "' OR '1'='1", "a.b.c"):
        for path in (PATH, f"{PATH}?access_token={credential}", "/admin/v1/policies/current", "/v1/models"):
            headers = {"authorization": f"Bearer {credential}"}
            answers.append(httpx2.post(stage.url + path, json=body, headers=headers))
            answers.append(httpx2.get(stage.url + path, headers=headers))
    answers.append(httpx2.post(stage.url + PATH, json={**body, "bogus": PROMPT}, headers=stage.headers(sub="u-secret")))
    for mode in ("error", "refuse", "garbage"):
        stage.upstream.mode = mode
        answers.append(httpx2.post(stage.url + PATH, json=body, headers=stage.headers(sub="u-secret")))
    answers.append(httpx2.get(f"{stage.url}/readyz"))
    assert {answer.status_code for answer in answers} >= {200, 400, 401, 403, 405}
    stage.records_of("u-secret")

    places = {
        "answers": "\n".join(f"{answer.headers} {answer.text}" for answer in answers),
        "log": "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records),
        "metrics": generate_latest(stage.gateway.services.registry).decode(),
        "audit": apart(_everything(stage.database_url)),
        "spool": _files(stage.gateway.services.settings.audit.spool_dir),
    }
    secrets = {
        "token": good,
        "signature": good.rpartition(".")[2],
        "forged token": expired,
        "API key": key,
        "secret of the key": key[-30:],
        "pepper": PEPPER,
        "upstream key": UPSTREAM_KEY,
        "database password": make_url(stage.database_url).password or "",
        "prompt": PROMPT,
    }
    for place, text in places.items():
        assert text, place
        for name, secret in secrets.items():
            assert len(secret) > 8
            assert secret not in text, f"{name} in {place}"


async def _everything(url: str) -> str:
    """Every row of every table of this product, as text."""
    connection = await _connect(url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [await connection.fetch(f'SELECT * FROM "{table["tablename"]}"') for table in tables]
        return "\n".join(str(dict(row)) for found in rows for row in found)
    finally:
        await connection.close()


def _files(folder: Path | None) -> str:
    assert folder is not None
    return "\n".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("header", ["cookie", "proxy-authorization", "x-forwarded-authorization", "x-auth-token"])
def test_a_token_in_another_place_is_no_credential(stage: Stage, header: str) -> None:
    token = stage.token()
    value = f"session={token}; access_token={token}" if header == "cookie" else f"Bearer {token}"
    answer = httpx2.get(f"{stage.url}/v1/models", headers={header: value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_token")


@pytest.mark.parametrize("kind", subclasses(GatewayError), ids=lambda kind: kind.__name__)
def test_an_error_shows_its_message_and_keeps_its_detail(kind: type[GatewayError]) -> None:
    error = kind("Public.")
    error.detail = "SELECT * FROM secret; /etc/passwd; Traceback (most recent call last)"
    error.__cause__ = RuntimeError("the upstream said: hunter2")
    shown = json.loads(OPENAI.error_body(error, "the-id"))["error"]
    assert shown.pop("message") == "Public."
    assert shown.pop("request_id") == "the-id"
    assert set(shown) <= {"type", "code", "param", "hint"}
    assert not any("secret" in str(value) or "passwd" in str(value) for value in shown.values())


def test_every_error_has_a_status_a_type_and_a_code_of_its_own() -> None:
    kinds = [kind for kind in subclasses(GatewayError)[1:] if kind.__module__ == errors.__name__]
    assert all(400 <= kind.status < 600 and kind.type and kind.code != GatewayError.code for kind in kinds)
    assert len({kind.code for kind in kinds}) == len(kinds)
