"""The first router: small or large by difficulty, only among what is permitted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, NotFound
from gateway.flow.tools import ToolChoice, ToolSpec
from gateway.flow.values import ChatRequest, CompletionRequest, GenerationParams, Message, ModelCard, RoutePlan
from gateway.routing.features import features_of
from gateway.routing.router import ROUTER_VERSION, ComplexityRouter
from gateway.settings import RoutingSettings

SMALL = ModelCard("small", "local", tier="small", context_window=2048)
LARGE = ModelCard("large", "local", tier="large", context_window=8192)
AUTO = ModelCard("auto", "", virtual=True)
TOOLS = (ToolSpec("clima"),)
ROUTER = ComplexityRouter(RoutingSettings())

EASY = [
    ("What is the capital of France?", "¿Cuál es la capital de Francia?"),
    ("Say hello to Ana.", "Saluda a Ana."),
    ("Translate 'good morning' into Portuguese.", "Traduce «buenos días» al portugués."),
]
HARD = [
    (
        "Write a Python function that merges overlapping intervals, prove its complexity O(n log n), and add tests.",
        "Escribe una función en Python que fusione intervalos solapados, demuestra su complejidad O(n log n) y añade "
        "pruebas.",
    ),
    (
        "Solve the integral of x^2 * sin(x) dx step by step and verify the result by differentiation.",
        "Resuelve la integral de x^2 * sin(x) dx paso a paso y verifica el resultado derivando.",
    ),
    (
        "Design a rate limiter: 1) it survives partitions 2) under 5 ms at p99 3) in several regions. Compare two "
        "algorithms, with code.",
        "Diseña un limitador: 1) sobrevive a particiones 2) menos de 5 ms en el p99 3) en varias regiones. Compara dos "
        "algoritmos, con código.",
    ),
]


def chat(*turns: str, system: str | None = None, **params: object) -> ChatRequest:
    messages = [Message.of_text("system", system)] if system else []
    for index, text in enumerate(turns):
        messages.append(Message.of_text("assistant" if index % 2 else "user", text))
    return ChatRequest("auto", tuple(messages), params=GenerationParams(**params))  # type: ignore[arg-type]


def plan(request: ChatRequest, permitted: Sequence[ModelCard] = (SMALL, LARGE)) -> RoutePlan:
    return ROUTER.plan(request, AUTO, permitted)


@pytest.mark.parametrize("text", [text for pair in EASY for text in pair])
def test_easy_requests_go_to_the_small_model(text: str) -> None:
    assert plan(chat(text)).target is SMALL


@pytest.mark.parametrize("text", [text for pair in HARD for text in pair])
def test_hard_requests_go_to_the_large_model(text: str) -> None:
    assert plan(chat(text)).target is LARGE


def test_a_model_asked_for_by_name_is_left_alone() -> None:
    direct = ROUTER.plan(chat(HARD[0][0]), SMALL, (SMALL,))
    assert (direct.candidates, direct.route, direct.score) == ((SMALL,), "direct", None)


@pytest.mark.parametrize("text", [text for pair in HARD for text in pair])
def test_a_hard_request_never_reaches_a_model_that_is_not_permitted(text: str) -> None:
    found = plan(chat(text), (SMALL,))
    assert found.candidates == (SMALL,)
    assert "no large model is permitted for you" in found.reason


def test_an_easy_request_of_someone_with_only_the_large_model_goes_there() -> None:
    found = plan(chat("Hola"), (LARGE,))
    assert (found.target, found.route) == (LARGE, "large")
    assert "no small model is permitted" in found.reason


@pytest.mark.parametrize("permitted", [(), (AUTO,), (ModelCard("other", "local"),)])
def test_nothing_permitted_is_not_found_and_never_unrestricted(permitted: Sequence[ModelCard]) -> None:
    with pytest.raises(NotFound) as caught:
        plan(chat("Hola"), permitted)
    assert caught.value.code == "model_not_found"


def test_the_virtual_model_is_never_its_own_target() -> None:
    assert all(not card.virtual for card in plan(chat("Hola"), (AUTO, SMALL, LARGE)).candidates)


def test_the_other_model_is_the_fallback() -> None:
    assert plan(chat(HARD[0][0])).candidates == (LARGE, SMALL)


def test_a_prompt_too_long_for_the_small_model_goes_to_the_large_one_only() -> None:
    found = plan(chat("hola " * 2500))
    assert found.candidates == (LARGE,)


def test_a_long_answer_wanted_keeps_away_from_a_short_window() -> None:
    found = plan(chat("Hola", max_tokens=4000))
    assert found.candidates == (LARGE,)
    assert "does not fit the small model" in found.reason


def test_models_that_do_not_serve_the_action_are_not_considered() -> None:
    embedder = ModelCard("e", "local", tier="small", actions=("embeddings",))
    assert plan(chat("Hola"), (embedder, LARGE)).candidates == (LARGE,)


@pytest.mark.parametrize("text", [HARD[0][0], "Hola"])
def test_tools_go_only_to_a_model_that_calls_them(text: str) -> None:
    found = plan(replace(chat(text), tools=TOOLS), (SMALL, replace(LARGE, tools=False)))
    assert found.candidates == (SMALL,)
    assert ("the large model calls no tools" in found.reason) == (text != "Hola")


def test_tools_that_must_not_be_called_keep_no_model_away() -> None:
    request = replace(chat(HARD[0][0]), tools=TOOLS, tool_choice=ToolChoice("none"))
    assert plan(request, (SMALL, replace(LARGE, tools=False))).target.id == LARGE.id


def test_tools_that_no_permitted_model_calls_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(replace(chat("Hola"), tools=TOOLS), (replace(SMALL, tools=False),))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")


def test_the_plan_says_why_in_plain_ascii_for_a_header() -> None:
    found = plan(chat(HARD[0][1]))
    assert found.reason.startswith("large: difficulty 0.")
    assert ">= 0.50" in found.reason
    assert found.reason.isascii()


def test_the_plan_can_be_recomputed_from_its_record() -> None:
    found = plan(chat(HARD[0][0]))
    assert found.router_version == ROUTER_VERSION
    assert found.features["technical"] > 0
    assert found == plan(chat(HARD[0][0]))


def test_a_short_follow_up_inherits_the_hardness_of_the_turn_before() -> None:
    follow_up = plan(chat(HARD[0][0], "def merge(): ...", "now commit it"))
    assert (follow_up.score or 0) > 2 * (plan(chat("now commit it")).score or 0)


def test_magic_words_in_the_system_prompt_change_nothing() -> None:
    loud = "Think step by step. Prove the theorem. Python, algorithms, O(n^2), ```code```."
    assert plan(chat("Hola", system=loud)).score == plan(chat("Hola")).score


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest("auto"),
        ChatRequest("auto", (Message.of_text("user", ""),)),
        ChatRequest("auto", (Message.of_text("tool", "{}"),)),
        CompletionRequest("auto", prompts=((1, 2, 3),)),
        CompletionRequest("auto", prompts=("",)),
    ],
)
def test_requests_without_user_text_are_routed_too(request_: ChatRequest) -> None:
    assert plan(request_).target in (SMALL, LARGE)


@pytest.mark.parametrize(("english", "spanish"), [*EASY, *HARD])
def test_the_same_request_in_spanish_and_english_scores_alike(english: str, spanish: str) -> None:
    scores = [plan(chat(text)).score or 0 for text in (english, spanish)]
    assert abs(scores[0] - scores[1]) < 0.2


@given(st.text(max_size=5000))
def test_every_trait_of_any_text_is_between_0_and_1(text: str) -> None:
    assert all(0 <= value <= 1 for value in features_of(chat(text)).as_mapping().values())


def test_reading_the_longest_prompt_takes_no_longer_than_reading_its_ends() -> None:
    """In the thread's own processor time: a prompt a hundred times as long costs about the same."""

    def cpu_s(prompt: str) -> float:
        started = time.thread_time()
        features_of(chat(prompt))
        return time.thread_time() - started

    ends = min(cpu_s("((((a+)+)+b) " * 1_000) for _ in range(20))
    assert min(cpu_s("((((a+)+)+b) " * 100_000) for _ in range(20)) < 10 * ends
