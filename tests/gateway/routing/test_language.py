"""The language of a prompt, and a router that asks no model in one that it does not speak."""

from __future__ import annotations

import pytest

from gateway.flow.values import ChatRequest, Message, ModelCard
from gateway.routing.language import LanguageDetector
from gateway.routing.router import ComplexityRouter
from gateway.settings import RoutingSettings

DETECTOR = LanguageDetector()
SMALL = ModelCard("small", "local", tier="small", languages=("en",))
LARGE = ModelCard("large", "local", tier="large", languages=("en", "es", "pt"))
AUTO = ModelCard("auto", "", virtual=True)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("¿Qué es una esclusa?", "es"),
        ("dime tres ríos de Colombia", "es"),
        ("O que é uma eclusa?", "pt"),
        ("Como funciona uma eclusa?", "pt"),
        ("What is a lock?", "en"),
        ("Name three rivers of Colombia.", "en"),
        ("Hola", None),
        ("ok", None),
        ("1 + 1", None),
        ("", None),
    ],
)
def test_the_language_of_a_text_where_it_is_sure(text: str, language: str | None) -> None:
    assert DETECTOR.detect(text) == language


def routed(text: str, *cards: ModelCard) -> tuple[str, str]:
    router = ComplexityRouter(RoutingSettings(), DETECTOR)
    plan = router.plan(ChatRequest("auto", (Message.of_text("user", text),)), AUTO, cards or (SMALL, LARGE))
    return plan.target.id, plan.reason


def test_a_question_goes_to_the_model_that_speaks_its_language() -> None:
    assert routed("What is a lock?")[0] == "small"
    model, reason = routed("¿Qué es una esclusa?")
    assert model == "large"
    assert "the small model does not speak `es`" in reason
    assert routed("O que é uma eclusa?")[0] == "large"


def test_what_nobody_speaks_or_nobody_has_said_changes_nothing() -> None:
    assert routed("Was ist eine Schleuse, und wozu dient sie?")[0] == "small"
    assert routed("¿Qué es una esclusa?", SMALL)[0] == "small"
    unsaid = ModelCard("unsaid", "local", tier="small")
    assert routed("¿Qué es una esclusa?", unsaid, LARGE)[0] == "unsaid"
    assert routed("Hola")[0] == "small"
