"""Tests that travel with a policy, run on every write and by `esclusa policy test`. Pure: they call `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.evaluator import evaluate
from gateway.access.document.fields import Word
from gateway.access.document.model import Given, Part, PolicyTest
from gateway.access.document.problems import Problem
from gateway.access.document.vocabulary import INFERENCE_ACTIONS
from gateway.flow.context import Client, RequestContext
from gateway.flow.values import Decision, ModelCard, Principal

DEFAULT_INSTANT = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""A Monday at noon UTC: the time of a test that states none."""


class TableModel(Part):
    id: Word
    tier: Literal["small", "large"] | None = None
    virtual: bool = False
    labels: dict[Word, Word] = Field(default_factory=dict)

    def to_card(self) -> ModelCard:
        return ModelCard(id=self.id, backend="table", tier=self.tier, virtual=self.virtual, labels=dict(self.labels))


class DecisionTable(Part):
    """A file of cases for one policy, with the catalog that they assume."""

    api_version: Literal["esclusa/v1"]
    kind: Literal["DecisionTable"]
    policy: Word
    """Path of the policy file, relative to the table."""
    catalog: tuple[TableModel, ...] = ()
    cases: tuple[PolicyTest, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class TestResult:
    __test__ = False

    name: str
    passed: bool
    expected: str
    found: str
    decision: Decision


def run_tests(snapshot: Snapshot, tests: Iterable[PolicyTest]) -> tuple[TestResult, ...]:
    return tuple(_run(snapshot, test) for test in tests)


def failing_tests(snapshot: Snapshot) -> list[Problem]:
    """The embedded tests that fail, as problems of the document; none may fail in a version that is written."""
    results = run_tests(snapshot, snapshot.document.tests)
    return [
        Problem(
            f"test `{result.name}`: expected {result.expected}, got {result.found}",
            path=("tests", index),
            kind="failing_test",
        )
        for index, result in enumerate(results)
        if not result.passed
    ]


def decide_given(snapshot: Snapshot, given: Given) -> Decision:
    model = None
    if given.model is not None:
        model = snapshot.catalog.get(given.model) or ModelCard(id=given.model, backend="table")
    return evaluate(snapshot, principal_of(given), given.action, model, context_of(given))


def principal_of(given: Given) -> Principal:
    return Principal(
        tenant=given.tenant,
        issuer=given.issuer,
        subject=given.subject,
        kind=given.type,
        roles=frozenset(given.roles),
        groups=frozenset(given.groups),
        scopes=frozenset(given.scopes),
        department=given.department,
        clearance=given.clearance,
        client_id=given.client,
        provider=given.provider,
    )


def context_of(given: Given) -> RequestContext:
    return RequestContext(
        request_id=UUID(int=0),
        received_at=datetime.fromisoformat(given.at).astimezone(UTC) if given.at else DEFAULT_INSTANT,
        started_s=0.0,
        route="policy-test",
        client=Client(ip=given.source),
        data_class=given.data_class,
        purpose=given.purpose,
    )


def _run(snapshot: Snapshot, test: PolicyTest) -> TestResult:
    if test.given.action in INFERENCE_ACTIONS and test.given.model is None:
        decision = decide_given(snapshot, test.given)
        return TestResult(test.name, False, test.expect, f"no `model` to `{test.given.action}` on", decision)
    decision = decide_given(snapshot, test.given)
    expected: list[str] = [test.expect]
    found: list[str] = [decision.effect.value]
    if test.rule is not None:
        expected.append(f"by `{test.rule}`")
        found.append(f"by `{decision.rule_id}`" if decision.rule_id else "by default")
    for name, value in test.obligations.model_dump(exclude_none=True).items() if test.obligations else ():
        expected.append(f"{name}={value}")
        found.append(f"{name}={getattr(decision.obligations, name)}")
    return TestResult(test.name, expected == found, " ".join(expected), " ".join(found), decision)
