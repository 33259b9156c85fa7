"""The reference page of the policy document names every field there is, and its examples are documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.access.document.model import (
    Flags,
    Given,
    Limit,
    LimitScope,
    ObligationSpec,
    PolicySet,
    PolicyTest,
    Rule,
    Subjects,
    When,
)
from gateway.access.document.problems import PolicyInvalid
from tests.fakes.policies import policy

PAGE = (Path(__file__).parents[4] / "docs/reference/policy-grammar.md").read_text(encoding="utf-8")
RULES = "rules: [{id: g, effect: allow, subjects: {any: true}, actions: [chat], models: {any: true}}]\n"


@pytest.mark.parametrize(
    "part", [PolicySet, Flags, Rule, Subjects, When, ObligationSpec, Limit, LimitScope, Given, PolicyTest]
)
def test_every_field_is_on_the_page(part: type[BaseModel]) -> None:
    names = {field.alias or name for name, field in part.model_fields.items()}
    missing = {name for name in names if not re.search(rf"`{re.escape(name)}\b", PAGE)}
    assert missing == set()


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_examples_are_documents(example: str) -> None:
    assert policy(RULES + example).limits


@pytest.mark.parametrize("row", re.findall(r"^\| `(\{.*?\})` \| (.*) \|$", PAGE, re.MULTILINE))
def test_scopes_and_subjects_of_the_tables_are_as_the_page_says(row: tuple[str, str]) -> None:
    written, means = row
    is_scope = any(word in written for word in ("each", "model:")) or written == "{department: finance}"
    text = (
        RULES + f"roles: {{analyst: {{}}, deployer: {{}}}}\nlimits: [{{id: l, scope: {written}, requests: 1}}]\n"
        if is_scope
        else f"roles: {{analyst: {{}}, deployer: {{}}}}\nrules: [{{id: d, effect: deny, subjects: {written}}}]\n"
    )
    if means.startswith("refused"):
        with pytest.raises(PolicyInvalid, match="expected"):
            policy(text)
    else:
        assert policy(text).rules
