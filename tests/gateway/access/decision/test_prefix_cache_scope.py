"""Who shares what an engine has computed of a prompt: by policy the tenant, the department or the user alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.access.decision.evaluator import merge_obligations
from gateway.access.document.model import ObligationSpec
from gateway.api.headers import answer_headers
from gateway.api.render import usage_object
from gateway.flow.answer import Bill
from gateway.flow.cache_salt import cache_salt
from gateway.flow.values import Decision, Effect, Obligations, Usage
from tests.fakes.exchanges import admitted
from tests.fakes.parts import ANA, Bench

ANA_FIN = replace(ANA, department="finance")
BEA_FIN = replace(ANA_FIN, subject="u-2")
CAI_HR = replace(ANA, subject="u-3", department="people")
ELSEWHERE = replace(ANA_FIN, tenant="beta")
OTHER_ISSUER = replace(ANA_FIN, issuer="https://other")
NOBODYS = replace(ANA, subject="u-4", department=None)
EVERYBODY = (ANA_FIN, BEA_FIN, CAI_HR, ELSEWHERE, OTHER_ISSUER, NOBODYS, replace(NOBODYS, subject="u-5"))


@pytest.mark.parametrize(
    ("scope", "domains"),
    [
        ("tenant", [0, 0, 0, 1, 0, 0, 0]),
        ("department", [0, 0, 1, 2, 0, 3, 4]),
        ("user", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_scope_is_a_domain_of_the_cache(scope: str, domains: list[int]) -> None:
    salt, context = cache_salt(b"key"), Bench().incoming().context
    salts = [salt(principal, context, scope) for principal in EVERYBODY]
    assert [list(dict.fromkeys(salts)).index(one) for one in salts] == domains


def test_no_two_scopes_and_no_two_data_classes_share_a_domain() -> None:
    salt, context = cache_salt(b"key"), Bench().incoming().context
    odd = replace(ANA, department=ANA.subject, subject="x")
    salts = {salt(who, context, scope) for who in (ANA, odd) for scope in ("tenant", "department", "user")}
    assert len(salts) == 4, "one for the tenant, and ANA without a department is a domain of one"
    assert salt(ANA, context, "user") != salt(ANA, replace(context, data_class="restricted"), "user")
    assert cache_salt(b"another start")(ANA, context, "tenant") not in salts


def test_the_strictest_of_all_grants_holds() -> None:
    written = [{"prefixCache": scope} for scope in ("department", "user", "tenant")]
    written += [{"cachedTokens": told} for told in ("hide", "show")]
    merged, _ = merge_obligations([ObligationSpec.model_validate(spec) for spec in written])
    assert (merged.prefix_cache, merged.cached_tokens) == ("user", "hide")
    assert merge_obligations([ObligationSpec(priority=1)])[0].prefix_cache == "tenant"


async def test_the_pipeline_asks_for_the_domain_that_policy_says() -> None:
    bench = Bench()
    bench.access.obligations = Obligations(prefix_cache="user")
    asked: list[str] = []
    pipeline = bench.pipeline()

    def salt(principal: Any, context: Any, scope: str) -> bytes:
        asked.append(scope)
        return b"salt"

    pipeline._salt = salt
    async with await pipeline.answer(bench.incoming()) as answer:
        assert [chunk async for chunk in answer]
    assert asked == ["user"]


@pytest.mark.parametrize(("told", "shown"), [("show", True), ("hide", False)])
def test_the_cached_tokens_are_told_or_left_out_everywhere(told: Any, shown: bool) -> None:
    decision = Decision(Effect.ALLOW, "", "r", 1, "ab" * 32, obligations=Obligations(cached_tokens=told))
    reserved, bill = admitted(decision=decision), Bill(Usage(320, 5, 300))
    assert ("prompt_tokens_details" in usage_object(reserved, bill.usage)) is shown
    assert any(name == b"x-esclusa-cached-tokens" for name, _ in answer_headers(reserved, bill)) is shown
