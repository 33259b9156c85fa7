"""What an operator hears at start: money that is never counted, and models that nobody may use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.access.decision.lint import startup_warnings
from gateway.access.history.service import AccessService
from gateway.flow.context import SystemClock
from gateway.flow.values import ModelCard
from gateway.settings import AccessSettings
from tests.fakes.policies import AUTO, LARGE, SMALL, policy
from tests.fakes.policy_stage import SEED

OPEN = "rules: [{id: g, effect: allow, subjects: {any: true}, actions: [chat], models: {any: true}}]\n"
MONEY = "limits: [{id: fin, scope: {%s}, window: month, cost_eur: 500}]\n"
OWN = (ModelCard("gpt-oss-20b", "up"), ModelCard("llama-70b", "up"), AUTO)


def kinds(text: str, *cards: ModelCard) -> list[str]:
    return [warning.kind for warning in startup_warnings(policy(text, cards))]


def test_a_budget_of_money_over_models_without_a_price_is_warned_of() -> None:
    (warning,) = startup_warnings(policy(OPEN + MONEY % "each: user", (SMALL, LARGE, AUTO)))
    assert warning.message == (
        "`fin` counts money, and all that it covers has no price, so it is never counted: `acme/large`, `acme/small`"
    )


def test_one_free_model_among_priced_ones_is_named() -> None:
    (warning,) = startup_warnings(policy(OPEN + MONEY % "each: user", (SMALL, replace(LARGE, price_out_micro=1))))
    assert warning.message.endswith("some of what it covers has no price, so it is never counted: `acme/small`")


def test_priced_models_and_limits_of_tokens_are_fine() -> None:
    priced = tuple(replace(card, price_in_micro=1) for card in (SMALL, LARGE))
    assert kinds(OPEN + MONEY % "each: user", *priced, AUTO) == []
    assert kinds(OPEN + MONEY % "model: acme/large", SMALL, priced[1]) == []
    assert kinds(OPEN + "limits: [{id: l, scope: {each: user}, tokens: 5}]\n", SMALL) == []


def test_a_policy_that_lets_nobody_use_any_model_is_said_first() -> None:
    found = startup_warnings(policy(OPEN.replace("any: true}}]", "ids: [acme/gone]}}]"), (SMALL, AUTO)))
    assert [one.kind for one in found] == ["no_model_use", "dead_pattern"]
    assert kinds(OPEN.replace("effect: allow", "effect: deny"), SMALL) == ["no_model_use"]


async def test_own_models_under_the_shipped_policy_are_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = AccessService(catalog=OWN, clock=SystemClock(), seed=SEED, settings=AccessSettings())
    await service.start()
    expected = "no rule grants any model of the catalog: every request is refused and `GET /v1/models` is empty"
    assert service.warnings[0].startswith(expected)
    assert any(expected in record.getMessage() for record in caplog.records)
    await service.close()
