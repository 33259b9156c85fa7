"""No key is configured: what policy wants encrypted is refused, and whoever writes such a policy is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: keyless}
roles: {kept: {}, plain: {}, policy-admin: {}}
rules:
  - id: kept
    effect: allow
    subjects: {roles: [kept]}
    actions: [chat]
    models: {ids: [mini]}
    obligations: {contentLogging: encrypted}
  - {id: plain, effect: allow, subjects: {roles: [plain]}, actions: [chat], models: {ids: [mini]}}
  - {id: admin, effect: allow, subjects: {roles: [policy-admin]}, actions: [policy.read, policy.write]}
"""


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("keyless") / "policy.yaml"
    path.write_text(POLICY)
    return {"access": {"policy_file": path}}


def ask(stage: Stage, role: str) -> httpx2.Response:
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}
    return httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(role), timeout=30)


def test_a_request_whose_content_must_be_encrypted_is_refused_and_recorded(stage: Stage) -> None:
    answer = ask(stage, "kept")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "content_key_missing")
    assert "content_key_file" in error["hint"]
    (row,) = stage.records(answer.headers["x-request-id"], expect=1)
    assert (row["decision"], row["error_code"]) == ("error", "content_key_missing")


def test_every_other_request_runs(stage: Stage) -> None:
    assert ask(stage, "plain").status_code == 200


def test_validating_such_a_policy_warns_at_the_rule(stage: Stage) -> None:
    answer = httpx2.post(
        f"{stage.url}/admin/v1/policies:validate",
        content=POLICY,
        headers={**stage.headers("policy-admin"), "content-type": "application/yaml"},
    )
    (warning,) = [item for item in answer.json()["warnings"] if "content stored" in item["message"]]
    assert "`kept`" in warning["message"]
    assert "content_key_file" in warning["hint"]
