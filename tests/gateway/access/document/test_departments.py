"""Departments: one spelling or another, declared or not, and callers who have none. Pure."""

from __future__ import annotations

import pytest

from gateway.access.decision.compiler import find_warnings
from gateway.access.decision.effective_subject import effective_subject
from gateway.access.document.problems import PolicyInvalid
from tests.fakes.policies import NOON, SMALL, decide, policy, who

RULES = "rules: [{id: g, effect: allow, subjects: {departments: [Finance]}, actions: [chat], models: {any: true}}]\n"
OPEN = "rules: [{id: g, effect: allow, subjects: {any: true}, actions: [chat], models: {any: true}}]\n"


@pytest.mark.parametrize("stated", ["finance", "Finance", "FINANCE", " finance ", "ﬁnance"])
def test_case_width_and_space_make_no_other_department(stated: str) -> None:
    assert decide(policy(RULES), who(department=stated)).allowed


@pytest.mark.parametrize("stated", [None, "finanzas", "fin ance"])
def test_another_word_is_another_department(stated: str | None) -> None:
    assert not decide(policy(RULES), who(department=stated)).allowed


def test_a_declared_list_finds_a_misspelt_department() -> None:
    with pytest.raises(PolicyInvalid) as raised:
        policy(
            "departments: [finance, sales]\n"
            + OPEN
            + "limits: [{id: l, scope: {department: finanse}, window: month, cost_eur: 5}]\n"
        )
    problem = raised.value.problems[0]
    assert (problem.pointer, problem.hint) == ("limits[0].scope.department", "did you mean `finance`?")


def test_without_a_list_a_budget_of_a_department_is_warned_of() -> None:
    limit = "limits: [{id: l, scope: {department: finanzas}, requests: 5}]\n"
    assert [one.kind for one in find_warnings(policy(OPEN + limit, ()))] == ["department"]
    assert find_warnings(policy("departments: [Finanzas]\n" + OPEN + limit, ())) == []


def test_who_has_no_department_may_be_charged_to_a_default_one() -> None:
    text = "departments: [finance, other]\nsettings: {defaultDepartment: other}\nroles: {r: {department: finance}}\n"
    snapshot = policy(text + OPEN)

    def charged(*roles: str, department: str | None = None) -> str | None:
        return effective_subject(snapshot, who(*roles, department=department), NOON).charged_department

    assert (charged(), charged(department="Finance"), charged("r"), charged(department="finanzas")) == (
        "other",
        "Finance",
        "finance",
        "other",
    )


def test_who_has_no_department_may_be_refused() -> None:
    snapshot = policy("departments: [finance]\nsettings: {requireDepartment: true}\n" + OPEN)
    refused = decide(snapshot, who())
    assert (refused.allowed, refused.rule_id, refused.reason) == (
        False,
        "builtin:department",
        "no department is charged for you: your token names none",
    )
    assert decide(snapshot, who(department="finanzas")).reason == "the department `finanzas` is not a known one"
    assert decide(snapshot, who(department="FINANCE"), SMALL).allowed
