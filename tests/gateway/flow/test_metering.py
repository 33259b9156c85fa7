"""What an answer is charged for, whatever its backend says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.flow.metering import Meter, echoed_bytes
from gateway.flow.values import CompletionRequest, Delta, Estimate, GenerationParams, TextDelta, Usage

PROMPT = Estimate(10, 100, exact=False)


def meter(*deltas: Delta) -> Meter:
    made = Meter()
    for delta in deltas:
        made.take(delta)
    return made


def test_a_thousand_words_in_one_chunk_are_not_one_token() -> None:
    assert meter(TextDelta(0, "palabra " * 1000)).usage(None, PROMPT) == Usage(10, 2000, source="estimated")


def test_single_characters_are_not_a_token_each() -> None:
    assert (
        meter(*[TextDelta(0, letter) for letter in "The quick brown fox "]).usage(None, PROMPT).completion_tokens == 5
    )


def test_token_ids_are_counted_exactly() -> None:
    exact = Estimate(10, 100, exact=True)
    assert meter(TextDelta(0, "a", (1, 2)), TextDelta(0, "b", (3,))).usage(None, exact) == Usage(10, 3)


def test_the_choices_of_a_request_add_up() -> None:
    counted = meter(TextDelta(0, "x" * 40), TextDelta(1, "x" * 20), TextDelta(1, "x" * 20))
    assert counted.usage(None, PROMPT).completion_tokens == 20


@pytest.mark.parametrize(
    "reported",
    [
        Usage(0, 0, source="upstream"),
        Usage(10, 0, source="upstream"),
        Usage(0, 1, source="upstream"),
        Usage(10, 1, source="upstream"),
        Usage(source="estimated"),
    ],
)
def test_usage_that_cannot_be_true_is_replaced_by_what_was_seen(reported: Usage) -> None:
    found = meter(TextDelta(0, "palabra " * 1000)).usage(reported, PROMPT)
    assert (found.prompt_tokens, found.completion_tokens, found.source) == (10, 2000, "estimated")


@pytest.mark.parametrize(
    "reported", [Usage(7, 900, source="upstream"), Usage(3000, 4000, 2000, 1500, source="upstream")]
)
def test_usage_that_can_be_true_is_believed(reported: Usage) -> None:
    assert meter(TextDelta(0, "palabra " * 1000)).usage(reported, PROMPT) == reported


def test_an_empty_answer_may_have_no_tokens() -> None:
    assert meter(TextDelta()).usage(Usage(7, 0, source="upstream"), PROMPT) == Usage(7, 0, source="upstream")


def test_what_the_engine_counted_is_final() -> None:
    assert meter(TextDelta(0, "x" * 4000, (1,))).usage(Usage(5, 1), PROMPT) == Usage(5, 1)


@pytest.mark.parametrize("choices", [1, 2])
def test_an_echoed_prompt_was_not_generated(choices: int) -> None:
    prompt = "El año de la esclusa. " * 20
    made = Meter(echoed_bytes(CompletionRequest("m", prompts=(prompt,), params=GenerationParams(echo=True, n=choices))))
    for index in range(choices):
        for text in (prompt, "x" * 40):
            made.take(TextDelta(index, text))
    assert made.usage(None, PROMPT).completion_tokens == 10 * choices
    told = Usage(10, 3 * choices, source="upstream")
    assert made.usage(told, PROMPT) == told


def test_only_an_echo_of_a_text_is_known() -> None:
    request = CompletionRequest("m", prompts=("hola",), params=GenerationParams(echo=True))
    assert echoed_bytes(request) == (4,)
    assert echoed_bytes(replace(request, params=GenerationParams())) == ()
    assert echoed_bytes(replace(request, prompts=((1, 2), "adiós"))) == (0, 6)
