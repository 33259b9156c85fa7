"""A budget of money or of tokens ends an answer at the token it pays for: streamed or whole, own engine or upstream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.calendar import noon_zone
from tests.fakes.stage import Stage
from tests.fakes.tiny_model import write_tiny_model

PATH = "/v1/chat/completions"
POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: midstream}
roles: {money: {}, tokens: {}, output: {}, reader: {}}
rules:
  - {id: all, effect: allow, subjects: {roles: [money, tokens, output]}, actions: [chat], models: {ids: [tiny, far]}}
  - {id: read, effect: allow, subjects: {roles: [reader]}, actions: [limits.read]}
limits:
  - {id: money, scope: {each: user, role: money}, window: month, tz: ZONE, cost_eur: 0.10}
  - {id: tokens, scope: {each: user, role: tokens}, window: day, tz: ZONE, tokens: 90}
  - {id: output, scope: {each: user, role: output}, window: day, tz: ZONE, tokensOut: 40}
""".replace("ZONE", noon_zone())
PRICE = {"price_in_micro": 0, "price_out_micro": 2_000_000_000}
"""0.002 EUR a token: 0.10 EUR pay for exactly fifty."""


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("midstream")
    (folder / "policy.yaml").write_text(POLICY)
    write_tiny_model(folder)
    return {
        "access": {"policy_file": folder / "policy.yaml"},
        "models": (
            {"id": "tiny", "tier": "small", "path": str(folder), **PRICE},
            {"id": "far", "tier": "large", "upstream": "up", "context_window": 2048, **PRICE},
        ),
        "engine": {"device": "cpu", "kv_cache_bytes": 4 << 20, "threads": 1, "max_num_seqs": 4},
    }


def ask(stage: Stage, role: str, sub: str, **changes: Any) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "Hola"}], "max_tokens": 150, "ignore_eos": True, **changes}
    if body["model"] == "far":
        del body["ignore_eos"]
    return httpx2.post(stage.url + PATH, json=body, headers=stage.headers(role, sub=sub), timeout=60)


def ending(answer: httpx2.Response) -> tuple[str | None, str | None, int]:
    """(finish reason, stop, completion tokens) of a whole answer, or of a stream's last chunk and usage."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        body = answer.json()
        return (
            body["choices"][0]["finish_reason"],
            body["x_esclusa"].get("stop"),
            body["usage"]["completion_tokens"],
        )
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    *_, last, usage = (json.loads(line) for line in lines[:-1])
    return last["choices"][0]["finish_reason"], last["x_esclusa"]["stop"], usage["usage"]["completion_tokens"]


def spent(stage: Stage, role: str, sub: str, quantity: str) -> tuple[int, int, int]:
    found = httpx2.get(
        f"{stage.url}/admin/v1/usage",
        params={"user": f"{stage.issuer.issuer}#{sub}", "role": role},
        headers=stage.headers("reader", sub="u-reader"),
    ).json()
    (window,) = [item for item in found["data"] if item["limit_id"] == role]
    (amount,) = [item for item in window["quantities"] if item["quantity"] == quantity]
    return amount["used"], amount["held"], amount["limit"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("model", ["tiny", "far"])
@pytest.mark.parametrize(
    ("role", "quantity", "granted"),
    [("money", "cost_micro", 50), ("tokens", "tokens", None), ("output", "tokens_out", 40)],
)
def test_a_budget_ends_the_answer_at_its_last_token_and_then_refuses(
    stage: Stage, role: str, quantity: str, granted: int | None, model: str, stream: bool
) -> None:
    sub = f"u-{role}-{model}-{stream}"
    stage.upstream.words, stage.upstream.keeps_limits = tuple(f"w{number} " for number in range(300)), not stream
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reason, stop, tokens = ending(ask(stage, role, sub, model=model, **options))
    assert (reason, stop) == ("length", "budget")
    assert 0 < tokens < 90
    if granted is not None:
        assert tokens == granted
    used, held, limit = spent(stage, role, sub, quantity)
    assert held == 0
    # Nobody counts an upstream's prompt beforehand; what it says in the end is what is booked.
    assert used == limit or (model == "far" and role == "tokens" and abs(used - limit) < 5)
    refusal = ask(stage, role, sub, model=model, max_tokens=100)
    if used >= limit:
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "budget_exceeded")
        assert refusal.json()["error"]["type"] == "insufficient_quota"
        assert refusal.headers["x-should-retry"] == "false"
        assert int(refusal.headers["retry-after"]) > 60


def test_the_clamp_is_what_the_upstream_is_told(stage: Stage) -> None:
    stage.upstream.keeps_limits = True
    ask(stage, "money", "u-clamp", model="far")
    sent = stage.upstream.seen[-1].body
    assert sent.get("max_tokens", sent.get("max_completion_tokens")) == 50


def test_an_answer_within_the_budget_blames_nothing(stage: Stage) -> None:
    answer = ask(stage, "money", "u-within", model="tiny", max_tokens=5).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "stop" not in answer["x_esclusa"]


def test_the_record_says_that_a_budget_ended_the_answer(stage: Stage) -> None:
    answer = ask(stage, "money", "u-record", model="tiny")
    _, completion = stage.records(answer.headers["x-request-id"])
    result = json.loads(completion["rec"])["result"]
    assert (result["finish_reason"], result["stop_cause"]) == ("length", "budget")
    assert completion["cost_micro"] == 100_000
