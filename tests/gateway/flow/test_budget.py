"""What limits keep of themselves for a request that never ran."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import ContextLengthExceeded
from gateway.flow.budget import estimate, guarded, requests_only
from gateway.flow.values import ChatRequest, GenerationParams, LimitRule, Message, ModelCard, Obligations, Prepared

CARD = ModelCard("m", "local", context_window=1000)


def granted(max_tokens: int, prompt_tokens: int | None, *, up_to_window: bool = True, text: str = "Hola") -> int:
    params = GenerationParams(max_tokens=max_tokens, up_to_window=up_to_window)
    request = ChatRequest("m", (Message.of_text("user", text),), params=params)
    return estimate(request, CARD, Obligations(), Prepared(prompt_tokens)).max_output_tokens


def test_an_answer_up_to_the_window_gets_what_room_there_is() -> None:
    assert granted(32_000, 400) == 600
    assert granted(50, 400) == 50
    with pytest.raises(ContextLengthExceeded):
        granted(32_000, 400, up_to_window=False)
    with pytest.raises(ContextLengthExceeded):
        granted(32_000, 1000)


def test_a_guessed_prompt_takes_room_only_while_plenty_is_left() -> None:
    short, long = "x" * 300, "x" * 2800
    assert granted(32_000, None, text=short) == 1000 - 100 - 8
    assert granted(32_000, None, text=long) == 32_000


def test_limits_keep_only_their_count_of_requests() -> None:
    rules = (
        LimitRule("a", "user", "user:1", requests=5, tokens=9, tokens_in=8, tokens_out=7, concurrent=2, cost_micro=3),
        LimitRule("b", "user", "user:1", tokens=9),
    )
    assert requests_only(rules) == (LimitRule("a", "user", "user:1", requests=5),)


@pytest.mark.parametrize(
    ("asked", "by_card", "by_policy", "output"),
    [
        (None, None, None, 600),
        (None, 512, None, 512),
        (None, None, 300, 300),
        (None, 512, 300, 300),
        (None, None, 5000, 600),
        (450, 100, 300, 450),
    ],
)
def test_the_length_of_an_answer_whose_caller_names_none(
    asked: int | None, by_card: int | None, by_policy: int | None, output: int
) -> None:
    request = ChatRequest("m", (Message.of_text("user", "Hola"),), params=GenerationParams(max_tokens=asked))
    card = replace(CARD, default_max_tokens=by_card)
    duties = Obligations(default_output_tokens=by_policy)
    assert estimate(request, card, duties, Prepared(400)).max_output_tokens == output


def test_policy_asks_for_the_end_of_loops_and_the_caller_cannot() -> None:
    request = ChatRequest("m", (Message.of_text("user", "Hola"),))
    assert guarded(request, Obligations()) is request
    assert guarded(request, Obligations(repetition_guard="stop")).params.stop_on_repetition
