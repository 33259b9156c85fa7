"""The measured decision is fast enough; the bound is loose because test machines are shared."""

from __future__ import annotations

from gateway.access.decision.bench import bench_policy, bench_snapshot


def test_a_decision_over_a_thousand_rules_takes_microseconds() -> None:
    assert bench_policy(rules=1000, decisions=1000, rounds=5) < 250


def test_the_measured_policy_has_the_rules_it_claims() -> None:
    assert len(bench_snapshot(1000).rules) == 1000
