"""An upstream that reports no usage, zeros or other names is never free: budgets bind all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: silent}
roles: {tiny: {}}
rules:
  - {id: all, effect: allow, subjects: {roles: [tiny]}, actions: [chat, embeddings], models: {ids: [far, embed]}}
limits:
  - {id: day, scope: {each: user}, window: day, tokens: 3000}
"""
MISREPORTED: dict[str, Any] = {
    "absent": {},
    "null": {"usage": None},
    "empty": {"usage": {}},
    "zeros": {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
    "null members": {"usage": {"prompt_tokens": None, "completion_tokens": None}},
    "only a total": {"usage": {"total_tokens": 0}},
    "one token": {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
}


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("silent")
    (folder / "policy.yaml").write_text(POLICY)
    return {
        "access": {"policy_file": folder / "policy.yaml"},
        "models": (
            {"id": "far", "tier": "large", "upstream": "up", "context_window": 32_768, "price_out_micro": 1_000_000},
            {"id": "embed", "upstream": "up", "context_window": 32_768, "actions": ("embeddings",)},
        ),
    }


def chat(stage: Stage, sub: str, stream: bool) -> httpx2.Response:
    body = {"model": "far", "messages": [{"role": "user", "content": "hola"}], "max_tokens": 1200, "stream": stream}
    return httpx2.post(
        f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers("tiny", sub=sub), timeout=60
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", list(MISREPORTED))
def test_a_budget_is_spent_by_answers_of_an_upstream_that_reports_nothing_true(
    stage: Stage, name: str, stream: bool
) -> None:
    stage.upstream.misreports = MISREPORTED[name]
    stage.upstream.words = ("palabra " * 100,) * 10
    sub = f"u-{name.replace(' ', '-')}-{stream}"
    answers = [chat(stage, sub, stream) for _ in range(4)]
    # A streamed answer ends where the estimate reaches what was granted, so that one more may begin.
    assert [answer.status_code for answer in answers] == [200, 200, 200 if stream else 429, 429]
    completion = stage.records(answers[0].headers["x-request-id"])[-1]
    assert completion["tokens_out"] >= 1000
    assert completion["cost_micro"] >= 1000


@pytest.mark.parametrize("name", list(MISREPORTED))
def test_embeddings_without_usage_are_charged_for_their_inputs(stage: Stage, name: str) -> None:
    if name == "one token":
        pytest.skip("a prompt count above zero is believed")
    stage.upstream.misreports = MISREPORTED[name]
    headers = stage.headers("tiny", sub=f"u-e-{name.replace(' ', '-')}")
    body = {"model": "embed", "input": ["palabra " * 500] * 2}
    answers = [httpx2.post(f"{stage.url}/v1/embeddings", json=body, headers=headers, timeout=60) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]


def test_other_names_of_the_same_numbers_are_read(stage: Stage) -> None:
    stage.upstream.misreports = {"usage": {"input_tokens": 23, "output_tokens": 7}}
    answer = chat(stage, "u-names", False)
    assert answer.json()["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 23,
        "completion_tokens": 7,
        "total_tokens": 30,
        "prompt_tokens_details": None,
    }
