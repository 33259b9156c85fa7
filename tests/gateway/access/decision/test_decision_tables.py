"""The decision tables shipped in policies/, the tests inside the shipped documents, and what an embedded test says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.decision.decision_tests import failing_tests, run_tests
from gateway.cli.policy_files import run_file
from tests.fakes.policies import policy

POLICIES = Path(__file__).parents[4] / "policies"
FILES = sorted(POLICIES.rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(POLICIES)))
def test_every_case_comes_out_as_written(file: Path) -> None:
    results = run_file(file)
    assert len(results) > 5
    assert [(result.name, result.found) for result in results if not result.passed] == []


def test_both_shipped_documents_have_a_table() -> None:
    assert {file.name for file in (POLICIES / "tests").iterdir()} == {"default.yaml", "banco.yaml"}


BODY = """
roles: {r: {}}
rules:
  - {id: g, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {any: true},
     obligations: {maxOutputTokens: 9}}
tests:
  - {name: t, given: {roles: [r], action: chat, model: acme/small}, expect: %s}
"""


@pytest.mark.parametrize(
    ("expect", "found"),
    [
        ("deny", "expected deny, got allow"),
        ("allow, rule: other", "expected allow by `other`, got allow by `g`"),
        (
            "allow, obligations: {maxOutputTokens: 8}",
            "expected allow max_output_tokens=8, got allow max_output_tokens=9",
        ),
    ],
)
def test_a_failing_test_says_what_came_out(expect: str, found: str) -> None:
    [problem] = failing_tests(policy(BODY % expect))
    assert problem.message == f"test `t`: {found}"
    assert problem.pointer == "tests[0]"


def test_a_test_of_model_use_without_a_model_fails() -> None:
    snapshot = policy((BODY % "deny").replace(", model: acme/small", ""))
    assert [result.found for result in run_tests(snapshot, snapshot.document.tests)] == ["no `model` to `chat` on"]
