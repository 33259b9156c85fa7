"""The claims matrix again, through a whole gateway on real stores: status, code, challenge, one conclusion each."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from sqlalchemy.engine import make_url

from tests.fakes.issuer import private_key, public_jwk
from tests.fakes.stage import (  # noqa: F401
    Stage,
    _plain_upstream,
    apart,
    stage,
    stage_database_url,
    upstream_thread,
)
from tests.fakes.stage import issuer as issuer  # the development issuer that the stage trusts as well
from tests.gateway.identity.test_claims_matrix import CONFIG, FORBIDDEN, ROWS, matrix_issuer, signed

OTHER_CONFIGURATION = {"c098"}
"""Asks for a provider that takes people by e-mail; the provider types have rows of their own in the unit test."""
PLAIN = [row for row in ROWS if "provider" not in row and row["id"] not in OTHER_CONFIGURATION]
NOT_PERMITTED = {"c101"}
"""Authenticated, and then refused by policy: a role called `*` is nobody's role."""


@dataclass(frozen=True)
class Answer:
    status: int
    code: str | None
    challenge: str | None
    request_id: str


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps(matrix_issuer({}).jwks()))
    return path


@pytest.fixture(scope="module")
def stage_overrides(key_file: Path) -> dict[str, Any]:
    provider = {
        "name": "corp",
        "type": "keycloak",
        "issuer": CONFIG["issuer"],
        "audiences": CONFIG["audiences"],
        "allowed_clients": CONFIG["allowed_azp"],
        "jwks_file": key_file,
        "discovery": False,
    }
    return {"identity": {"providers": (provider,), "jwks_cooldown_s": 0.0}}


@pytest.fixture(scope="module")
def answers(stage: Stage, key_file: Path) -> dict[str, Answer]:  # noqa: F811
    found = {}
    with httpx2.Client(base_url=stage.url) as client:
        for row in PLAIN:
            if row.get("scenario") == "rotate-in":
                keys = matrix_issuer(row).jwks()
                keys["keys"].append(public_jwk(private_key("RS256", 2), "k2", "RS256"))
                key_file.write_text(json.dumps(keys))
            answer = client.post(
                "/v1/chat/completions",
                json={"model": "mini", "messages": [{"role": "user", "content": "hola"}]},
                headers={"authorization": f"Bearer {signed(row)}"},
            )
            code = answer.json().get("error", {}).get("code")
            found[row["id"]] = Answer(
                answer.status_code, code, answer.headers.get("www-authenticate"), answer.headers.get("x-request-id", "")
            )
    return found


@pytest.mark.parametrize("row", PLAIN, ids=[f"{row['id']} {row['name']}" for row in PLAIN])
def test_row_over_http(row: dict[str, Any], answers: dict[str, Answer]) -> None:
    answer = answers[row["id"]]
    if row["id"] in NOT_PERMITTED:
        assert (answer.status, answer.code) == (403, "model_not_permitted")
    elif row["expect"] == "accept":
        assert answer.status == 200
    elif row["code"] in FORBIDDEN:
        assert (answer.status, answer.code) == (403, row["code"])
    else:
        assert (answer.status, answer.code) == (401, row["code"])
        assert answer.challenge == 'Bearer error="invalid_token"'


def test_every_refusal_was_concluded_in_the_trail_exactly_once(stage: Stage, answers: dict[str, Answer]) -> None:  # noqa: F811
    refused = {a.request_id for a in answers.values() if a.status in (401, 403)}
    assert len(refused) > 40
    counts = apart(rows_by_request(stage.database_url, refused))
    assert counts == dict.fromkeys(refused, 1)


async def rows_by_request(url: str, wanted: set[str]) -> dict[str, int]:
    """Concluding rows per request, once all of them have been shipped."""
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(dsn)
    try:
        counts: dict[str, int] = {}
        for _ in range(100):
            rows = await connection.fetch(
                "SELECT request_id::text AS id, count(*) AS n FROM audit_event "
                "WHERE request_id::text = ANY($1) AND phase IN ('completion', 'denied') GROUP BY 1",
                list(wanted),
            )
            counts = {row["id"]: row["n"] for row in rows}
            if len(counts) == len(wanted):
                break
            await asyncio.sleep(0.1)
        return counts
    finally:
        await connection.close()
