"""A conversation is one text to a model: what is cut over its messages is found, and nothing is joined by accident."""

from __future__ import annotations

import pytest

from gateway.flow.values import ChatRequest, Inspection, Message, Obligations
from gateway.guardrails.actions import actions_of
from gateway.guardrails.prompts import Prompts
from gateway.guardrails.scan import scan
from gateway.guardrails.seams import seams

U, A, S = "user", "assistant", "system"


def see(*messages: tuple[str, str], redaction: str = "redact") -> Inspection:
    actions = actions_of(Obligations(redaction=redaction))  # type: ignore[arg-type]
    assert actions is not None
    talk = tuple(Message.of_text(role, content) for role, content in messages)  # type: ignore[arg-type]
    return Prompts(actions, lambda: None).inspect(ChatRequest("mini", talk))


def contents(seen: Inspection) -> list[str]:
    assert seen.request is not None
    return [message.texts[0] for message in seen.request.messages]


@pytest.mark.parametrize(
    ("first", "second", "category"),
    [
        ("mi dato es 3679", "6476H y ya", "es_nif"),
        ("ES71 6584 4398", "6565 3585 6010", "iban"),
        ("tarjeta 4533 1229", "6016 4788", "card"),
        ("escribe a ana.lopez", "@example.com", "email"),
        ("sk-proj-aB3dE5fG7hI9jK1lM3", "nO5pQ7rS9tU1vW3xY5zA7", "openai_key"),
    ],
)
def test_a_number_cut_over_two_messages_is_taken_out_of_both(first: str, second: str, category: str) -> None:
    seen = see((U, first), (U, second))
    assert [(found.category, found.count, found.where) for found in seen.findings] == [(category, 1, "user")]
    assert all(f"[{category.upper()}]" in content for content in contents(seen))


def test_other_roles_in_between_or_beside_do_not_hide_it() -> None:
    assert contents(see((U, "es 3679"), (A, "Sigue."), (U, "6476H"))) == ["es [ES_NIF]", "Sigue.", "[ES_NIF]"]
    assert contents(see((S, "El NIF del titular es 3679"), (U, "6476H"))) == [
        "El NIF del titular es [ES_NIF]",
        "[ES_NIF]",
    ]


def test_a_number_with_a_digit_in_each_message_is_found() -> None:
    assert contents(see(*((U, digit) for digit in "36796476H"))) == ["[ES_NIF]"] * 9


def test_a_word_in_the_message_before_announces_a_number() -> None:
    assert contents(see((A, "Indique su DNI"), (U, "45678912, gracias"))) == ["Indique su DNI", "[PE_DNI], gracias"]


def test_where_policy_blocks_it_blocks_and_where_it_flags_it_flags() -> None:
    assert see((U, "es 3679"), (U, "6476H"), redaction="block").action == "block"
    flagged = see((U, "es 3679"), (U, "6476H"), redaction="flag")
    assert (flagged.action, [found.action for found in flagged.findings]) == ("allow", ["flag"])


def test_only_the_ends_of_long_messages_are_read_again() -> None:
    filling = "El comité revisó el informe. " * 400
    assert contents(see((U, filling + "es 3679"), (U, "6476H. " + filling))) == [
        filling + "es [ES_NIF]",
        "[ES_NIF]. " + filling,
    ]


@pytest.mark.parametrize(
    "messages",
    [
        ((U, "La reunión es el 12"), (A, "Apuntado."), (U, "Z es la sala")),
        ((U, "Suma 4533 1229"), (A, "5762"), (U, "y ahora 6016 más 4788")),
        ((U, "Pedido 36796476"), (U, "Hola, ¿sigue en pie lo de mañana?")),
        ((U, "Tabla: 4510 3321"), (U, "7764 1290"), (U, "8843 2201")),
        ((U, "cc @maria"), (U, "@example.com es el dominio")),
    ],
)
def test_messages_that_only_stand_beside_each_other_stay(messages: tuple[tuple[str, str], ...]) -> None:
    assert see(*messages).action == "allow"


def test_the_reading_of_seams_can_be_stopped_before_each_message() -> None:
    stops = 0

    def check_deadline() -> None:
        nonlocal stops
        stops += 1

    texts = ["12 34"] * 50
    assert list(seams(texts, ["user"] * 50, scan, check_deadline)) == []
    assert stops == 49


@pytest.mark.parametrize("texts", [("4111", "1111 1111 1111"), ("4111 1111", "1111 1111"), ("4111 1111 1111", "1111")])
def test_a_card_cut_behind_any_of_its_groups_is_taken_out_of_both_messages(texts: tuple[str, str]) -> None:
    found = list(seams(texts, ("user", "user"), scan, lambda: None))
    assert [{part.index for part in parts} for parts in found] == [{0, 1}]
    assert {part.span.category for parts in found for part in parts} == {"card"}
