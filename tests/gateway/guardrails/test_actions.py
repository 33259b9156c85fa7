"""What each obligation makes of each kind of finding, and of a text that cannot be inspected."""

from __future__ import annotations

import pytest

from gateway.flow.values import Obligations
from gateway.guardrails.actions import GuardrailActions, Tally, actions_of


@pytest.mark.parametrize(
    ("redaction", "guardrails", "expected"),
    [
        ("off", "off", None),
        ("off", "default", None),
        ("off", "strict", GuardrailActions(None, None, "block", closed=True)),
        ("flag", "off", GuardrailActions("flag", "flag", None, closed=False)),
        ("flag", "default", GuardrailActions("flag", "flag", "flag", closed=False)),
        ("flag", "strict", GuardrailActions("flag", "flag", "block", closed=True)),
        ("redact", "off", GuardrailActions("redact", "redact", None, closed=False)),
        ("redact", "default", GuardrailActions("redact", "redact", "flag", closed=True)),
        ("redact", "strict", GuardrailActions("redact", "redact", "block", closed=True)),
        ("block", "off", GuardrailActions("block", "redact", None, closed=False)),
        ("block", "default", GuardrailActions("block", "redact", "flag", closed=True)),
        ("block", "strict", GuardrailActions("block", "redact", "block", closed=True)),
    ],
)
def test_the_table_of_duties(redaction: str, guardrails: str, expected: GuardrailActions | None) -> None:
    assert actions_of(Obligations(redaction=redaction, guardrails=guardrails)) == expected  # type: ignore[arg-type]


def test_findings_are_counted_by_kind_action_and_place() -> None:
    tally = Tally("in")
    tally.add("ids", "es_nif", "flag", certain=True, where="user")
    tally.add("ids", "es_nif", "flag", certain=True, where="user")
    tally.add("contact", "email", "flag", certain=False, where="system")
    one, other = tally.findings()
    assert (one.category, one.count, one.where, one.direction, one.score) == ("es_nif", 2, "user", "in", 1.0)
    assert (other.category, other.count, other.where, other.score) == ("email", 1, "system", 0.7)
