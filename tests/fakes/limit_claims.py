"""Short ways to say a limit rule, a claim and an estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.flow.values import Estimate, LimitRule, ModelCard, Usage
from gateway.limits.claim import Claim

CARD = ModelCard("m", "local", price_in_micro=100_000, price_out_micro=400_000)


def rule(name: str = "r", **quantities: Any) -> LimitRule:
    return LimitRule(name, quantities.pop("scope", "user"), f"user:acme/{name}", **quantities)


def claim(number: int = 1, **changes: Any) -> Claim:
    base = Claim(
        id=f"claim-{number}",
        prompt_tokens=10,
        output_tokens=20,
        choices=1,
        fixed_cost=0,
        price_out=0,
        min_grant=64,
        lease_ms=120_000,
    )
    return replace(base, **changes)


def asking(prompt: int = 10, output: int = 20, **changes: Any) -> Estimate:
    return Estimate(prompt, output, **changes)


def used(prompt: int = 10, output: int = 20) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=output)
