"""Whom a limit counts together, over HTTP: user, key, department, role, tenant, model; and what a caller is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.fakes.stage import Stage

PATH = "/v1/chat/completions"
SCOPES = ("user", "department", "role", "tenant", "model", "key")
POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: scopes}
roles: {by-user: {}, by-department: {}, by-role: {}, by-tenant: {}, by-model: {}, by-key: {}, warned: {}, rich: {},
        dear: {}, security: {}}
rules:
  - id: all
    effect: allow
    subjects: {any: true}
    actions: [chat]
    models: {ids: [mini, maxi, dollars, free]}
  - {id: keys, effect: allow, subjects: {roles: [security]}, actions: [identity.read, identity.write]}
limits:
  - {id: user, scope: {each: user, role: by-user}, window: day, requests: 2}
  - {id: department, scope: {each: department, role: by-department}, window: day, requests: 2}
  - {id: role, scope: {role: by-role}, window: day, requests: 2}
  - {id: tenant, scope: {each: tenant, role: by-tenant}, window: day, requests: 2}
  - {id: model, scope: {each: model, role: by-model}, window: day, requests: 2}
  - {id: key, scope: {each: key, role: by-key}, window: day, requests: 2}
  - {id: warned, scope: {each: user, role: warned}, window: day, requests: 4, warnAt: [0.5, 0.75]}
  - {id: rich, scope: {each: user, role: rich}, window: minute, requests: 100, tokens: 5000, concurrent: 9}
  - {id: dear, scope: {each: user, role: dear}, window: month, tz: Europe/Madrid, cost_eur: 5}
"""


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("scopes") / "policy.yaml"
    path.write_text(POLICY)
    priced = {"price_in_micro": 1_000_000, "price_out_micro": 1_000_000}
    return {
        "access": {"policy_file": path},
        "identity": {"api_key_pepper": SecretStr("p" * 40)},
        "models": (
            {"id": "mini", "tier": "small", "upstream": "up", "context_window": 512, **priced},
            {"id": "maxi", "tier": "large", "upstream": "up", "context_window": 512, **priced},
            {"id": "dollars", "upstream": "up", "context_window": 512, **priced, "currency": "USD"},
            {"id": "free", "upstream": "up", "context_window": 512, "currency": "USD"},
        ),
    }


def ask(stage: Stage, credential: dict[str, str], model: str = "mini") -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 4}
    return httpx2.post(stage.url + PATH, json=body, headers=credential, timeout=30)


@pytest.mark.parametrize(
    ("scope", "same", "another"),
    [
        ("user", {"department": "sales"}, {"sub": "eva"}),
        ("department", {"sub": "eva"}, {"department": "sales"}),
        ("role", {"sub": "eva", "department": "sales"}, {"tenant": "rival"}),
        ("tenant", {"sub": "eva", "department": "sales"}, {"tenant": "rival"}),
    ],
)
def test_a_window_is_shared_by_whom_it_names_and_nobody_else(
    stage: Stage, scope: str, same: dict[str, str], another: dict[str, str]
) -> None:
    who = {"sub": "ana", "department": "finance", "tenant": "acme"}
    role = f"by-{scope}"
    assert [ask(stage, stage.headers(role, **who)).status_code for _ in range(2)] == [200, 200]
    refusal = ask(stage, stage.headers(role, **{**who, **same}))
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "budget_exceeded")
    assert ask(stage, stage.headers(role, **{**who, **another})).status_code == 200


def test_a_model_is_counted_over_everybody_and_apart_from_other_models(stage: Stage) -> None:
    first, second = stage.headers("by-model", sub="ana"), stage.headers("by-model", sub="eva", tenant="rival")
    assert [ask(stage, who).status_code for who in (first, second, first)] == [200, 200, 429]
    assert ask(stage, first, "maxi").status_code == 200


def test_each_key_of_an_account_has_its_own_window(stage: Stage) -> None:
    admin = stage.headers("security", "by-key", sub="u-sec")
    url = f"{stage.url}/admin/v1/service-accounts"
    account = httpx2.post(url, json={"name": "nightly", "roles": ["by-key"]}, headers=admin).json()
    keys = [
        httpx2.post(f"{url}/{account['id']}/keys", json={"name": name}, headers=admin).json()["key"]
        for name in ("one", "two")
    ]
    assert [ask(stage, {"x-api-key": keys[0]}).status_code for _ in range(3)] == [200, 200, 429]
    assert ask(stage, {"x-api-key": keys[1]}).status_code == 200


def test_warnings_are_in_the_header_and_in_the_record(stage: Stage) -> None:
    who = stage.headers("warned", sub="u-warned")
    answers = [ask(stage, who) for _ in range(3)]
    told = [answer.headers.get("x-esclusa-limit-warning") for answer in answers]
    assert told[0] is None
    assert "50 %" in str(told[1])
    assert "75 %" in str(told[2])
    *_, completion = stage.records(answers[2].headers["x-request-id"])
    assert json.loads(completion["rec"])["decision"]["reservation"]["warnings"] == [told[2]]


def test_headers_tell_limit_rest_and_reset_of_requests_and_tokens(stage: Stage) -> None:
    headers = ask(stage, stage.headers("rich", sub="u-rich")).headers
    assert headers["x-ratelimit-limit-requests"] == "100"
    assert headers["x-ratelimit-remaining-requests"] == "99"
    assert headers["x-ratelimit-limit-tokens"] == "5000"
    assert 4900 < int(headers["x-ratelimit-remaining-tokens"]) < 5000
    for kind in ("requests", "tokens"):
        assert headers[f"x-ratelimit-reset-{kind}"].endswith("s")
    assert "retry-after" not in headers


def test_a_budget_refuses_a_price_in_another_currency_instead_of_miscounting_it(stage: Stage) -> None:
    who = stage.headers("dear", sub="u-dear")
    assert ask(stage, who).status_code == 200
    refusal = ask(stage, who, "dollars")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "budget_exceeded")
    assert "counts EUR, and this model is priced in USD" in refusal.json()["error"]["message"]
    assert ask(stage, who, "free").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"model": "mini", "messages": [' + b"[]," * 200_000 + b"[]]}", 400),
        (b'{"model": "nowhere", "messages": [{"role": "user", "content": "Hola"}]}', 404),
    ],
    ids=["no JSON", "too many values", "no such model"],
)
def test_a_flood_of_refused_bodies_ends_in_429(stage: Stage, body: bytes, status: int) -> None:
    who = {**stage.headers("by-user", sub=f"u-flood-{len(body)}"), "content-type": "application/json"}
    found = [httpx2.post(stage.url + PATH, content=body, headers=who, timeout=30).status_code for _ in range(6)]
    assert found[:2] == [status, status]
    assert found[-2:] == [429, 429]  # not even read any more, once the window was seen full
