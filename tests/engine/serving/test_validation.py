from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvalidInput, PromptTooLong
from engine.requests import GenerationRequest, Grammar, SamplingParams, SchedulingHints
from engine.serving.validation import RequestLimits, validate

LIMITS = RequestLimits(vocab_size=100, window=50, max_choices=8, cache_salt_required=True)
GOOD = GenerationRequest("r", (1, 2, 3), SamplingParams(), cache_salt=b"s")


def with_sampling(**fields: Any) -> GenerationRequest:
    return replace(GOOD, sampling=SamplingParams(**fields))


def test_max_tokens_defaults_to_the_room_left() -> None:
    assert validate(GOOD, LIMITS) == 47


def test_prompt_and_answer_may_fill_the_window_exactly() -> None:
    assert validate(with_sampling(max_tokens=47), LIMITS) == 47


def test_one_token_too_many_names_both_numbers_and_what_fits() -> None:
    with pytest.raises(PromptTooLong) as caught:
        validate(with_sampling(max_tokens=48), LIMITS)
    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_model_len, error.fits) == (3, 48, 50, 47)
    assert error.field == "max_tokens"


@pytest.mark.parametrize("length", [50, 51, 5000])
def test_a_prompt_that_leaves_no_room_is_too_long(length: int) -> None:
    with pytest.raises(PromptTooLong) as caught:
        validate(replace(GOOD, prompt_token_ids=(1,) * length), LIMITS)
    assert caught.value.field == "prompt"


def test_max_tokens_zero_is_for_prompt_logprobs_only() -> None:
    assert validate(with_sampling(max_tokens=0, prompt_logprobs=1), LIMITS) == 0
    with pytest.raises(InvalidInput, match="max_tokens"):
        validate(with_sampling(max_tokens=0), LIMITS)


BAD_SAMPLING: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 9),
    ("n", True),
    ("max_tokens", -1),
    ("max_tokens", 2.5),
    ("min_tokens", -1),
    ("min_tokens", 48),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 101),
    ("min_p", 1.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0.0),
    ("seed", 2**64),
    ("seed", 1.5),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
    ("logit_bias", {100: 1.0}),
    ("logit_bias", {1: 101.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ("logit_bias", [1, 2]),
    ("stop", ("",)),
    ("stop", "FIN"),
    ("stop", ("\ud83d",)),
    ("stop", ("a",) * 65),
    ("stop", ("a" * 4097,)),
    ("stop", ("a" * 4000,) * 2),
    ("stop_token_ids", (100,)),
    ("stop_token_ids", (1,) * 257),
    ("bad_words", ("",)),
    ("bad_words", ("\ud83d",)),
    ("bad_words", ("a",) * 129),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (-1,)),
]


@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING)
def test_a_value_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(with_sampling(**{field: value}), LIMITS)
    assert caught.value.field == field
    assert caught.value.limit
    assert len(str(caught.value)) < 200


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


BAD_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt_token_ids": ()}),
    ("prompt", {"prompt_token_ids": (1, 100)}),
    ("prompt", {"prompt_token_ids": (1, -1)}),
    ("prompt", {"prompt_token_ids": (1, True)}),
    ("request_id", {"request_id": ""}),
    ("request_id", {"request_id": "x" * 257}),
    ("cache_salt", {"cache_salt": None}),
    ("share_weight", {"scheduling": SchedulingHints(share_weight=0.0)}),
    ("share_weight", {"scheduling": SchedulingHints(share_weight=math.inf)}),
    ("request_id", {"request_id": 7}),
    ("cache_salt", {"cache_salt": "tenant"}),
    ("share_key", {"scheduling": SchedulingHints(share_key=["tenant"])}),  # type: ignore[arg-type]
    ("share_weight", {"scheduling": SchedulingHints(share_weight=5e-324)}),
    ("priority", {"scheduling": SchedulingHints(priority="high")}),  # type: ignore[arg-type]
    ("priority", {"scheduling": SchedulingHints(priority=None)}),  # type: ignore[arg-type]
    ("deadline_s", {"scheduling": SchedulingHints(deadline_s=math.nan)}),
    ("adapter", {"adapter": "lora"}),
    ("grammar.json_schema", {"sampling": SamplingParams(grammar=Grammar("json_schema", nested(20_000)))}),
    ("grammar.type", {"sampling": SamplingParams(grammar=Grammar("xml"))}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("field", "changes"), BAD_REQUESTS)
def test_a_request_that_cannot_run_is_refused_by_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(replace(GOOD, **changes), LIMITS)
    assert caught.value.field == field


def test_refusals_never_repeat_text() -> None:
    secret = "mi-contraseña"
    with pytest.raises(InvalidInput) as caught:
        validate(with_sampling(stop=(secret * 400,)), LIMITS)
    assert secret not in str(caught.value)
