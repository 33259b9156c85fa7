"""The small pure parts: growth of frozen values, digests, costs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from gateway.flow.budget import cost_micro, prompt_digest, rough_prompt_tokens
from gateway.flow.growth import grow
from gateway.flow.values import Exchange, Message, Timings
from tests.fakes.parts import ASK, MAXI, Bench


def test_growing_equals_replacing() -> None:
    exchange = Exchange(context=Bench().arrival().context)
    assert grow(exchange, status=7, request=ASK) == replace(exchange, status=7, request=ASK)


def test_growing_leaves_the_old_value_and_stays_frozen() -> None:
    old = Timings(auth_us=1)
    new = grow(old, auth_us=2)
    assert (old.auth_us, new.auth_us) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        new.auth_us = 3  # type: ignore[misc]


def test_growing_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        grow(Timings(), nonsense=1)


def test_cost_is_rounded_up() -> None:
    assert cost_micro(MAXI, 0, 1) == 2
    assert cost_micro(replace(MAXI, price_out_micro=1), 0, 1) == 1
    assert cost_micro(MAXI, 10, 0) == 0


def test_a_digest_tells_where_one_message_ends() -> None:
    joined = replace(ASK, messages=(Message.of_text("user", "ab"),))
    split = replace(ASK, messages=(Message.of_text("user", "a"), Message.of_text("user", "b")))
    assert prompt_digest(joined) != prompt_digest(split)


def test_the_guess_leans_upward_for_spanish() -> None:
    text = "El municipio aprobó ayer la ampliación del presupuesto para la construcción de viviendas."
    assert rough_prompt_tokens(replace(ASK, messages=(Message.of_text("user", text),))) >= len(text.split()) * 2
