"""What each obligation makes of each kind of finding, and of a text that cannot be inspected."""

from __future__ import annotations

import pytest

from gateway.flow.values import Obligations
from gateway.guardrails.duties import Duties, Tally, duties_of


@pytest.mark.parametrize(
    ("redaction", "guardrails", "expected"),
    [
        ("off", "off", None),
        ("off", "default", None),
        ("off", "strict", Duties(None, None, "block", closed=True)),
        ("flag", "off", Duties("flag", "flag", None, closed=False)),
        ("flag", "default", Duties("flag", "flag", "flag", closed=False)),
        ("flag", "strict", Duties("flag", "flag", "block", closed=True)),
        ("redact", "off", Duties("redact", "redact", None, closed=False)),
        ("redact", "default", Duties("redact", "redact", "flag", closed=True)),
        ("redact", "strict", Duties("redact", "redact", "block", closed=True)),
        ("block", "off", Duties("block", "redact", None, closed=False)),
        ("block", "default", Duties("block", "redact", "flag", closed=True)),
        ("block", "strict", Duties("block", "redact", "block", closed=True)),
    ],
)
def test_the_table_of_duties(redaction: str, guardrails: str, expected: Duties | None) -> None:
    assert duties_of(Obligations(redaction=redaction, guardrails=guardrails)) == expected  # type: ignore[arg-type]


def test_findings_are_counted_by_kind_action_and_place() -> None:
    tally = Tally("in")
    tally.add("ids", "es_nif", "flag", certain=True, where="user")
    tally.add("ids", "es_nif", "flag", certain=True, where="user")
    tally.add("contact", "email", "flag", certain=False, where="system")
    one, other = tally.findings()
    assert (one.category, one.count, one.where, one.direction, one.score) == ("es_nif", 2, "user", "in", 1.0)
    assert (other.category, other.count, other.where, other.score) == ("email", 1, "system", 0.7)
