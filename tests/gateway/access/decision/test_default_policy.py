"""The shipped policy: what each role may and may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy, find_warnings
from gateway.access.decision.decision_tests import run_tests
from gateway.access.document.parsing import parse_policy
from gateway.flow.values import ModelCard

POLICY = Path(__file__).parents[4] / "policies" / "default.yaml"
CATALOG = (
    ModelCard("smollm2-135m-instruct", "local", tier="small"),
    ModelCard("qwen2.5-coder-0.5b-instruct", "local", tier="large"),
    ModelCard("auto", "router", virtual=True),
    ModelCard("esclusa-guardrails", "guardrails", actions=("moderations",)),
    ModelCard("all-minilm-l6-v2", "local", actions=("embeddings",)),
)


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    document = parse_policy(POLICY.read_bytes(), name=str(POLICY))
    known = frozenset(card.id for card in CATALOG)
    return compile_policy(document, version=1, catalog=CATALOG, known_models=known)


def test_all_embedded_tests_pass(snapshot: Snapshot) -> None:
    failed = [result for result in run_tests(snapshot, snapshot.document.tests) if not result.passed]
    assert failed == []


def test_it_compiles_without_warnings(snapshot: Snapshot) -> None:
    assert find_warnings(snapshot) == []
