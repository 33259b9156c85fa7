"""The small pure parts: growth of frozen values, digests, costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError, replace

import pytest

from gateway.errors import GatewayError
from gateway.flow.budget import cost_micro, prompt_digest, rough_prompt_tokens
from gateway.flow.evolve import advance, evolve
from gateway.flow.stages import Authenticated, Authorized, Estimated, Inspected, Read, Received, Reserved
from gateway.flow.values import LimitVerdict, Message, Timings
from tests.fakes.parts import ANA, ASK, MAXI, MINI, Bench


def test_growing_equals_replacing() -> None:
    caller = Received(context=Bench().incoming().context).authenticated(ANA)
    timings = Timings(auth_us=7)
    assert evolve(caller, timings=timings) == replace(caller, timings=timings)


def test_growing_leaves_the_old_value_and_stays_frozen() -> None:
    old = Timings(auth_us=1)
    new = evolve(old, auth_us=2)
    assert (old.auth_us, new.auth_us) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        new.auth_us = 3  # type: ignore[misc]


def test_growing_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        evolve(Timings(), nonsense=1)


def test_a_later_stage_is_the_former_and_one_thing_more() -> None:
    received = Received(context=Bench().incoming().context)
    read = received.authenticated(ANA).read(ASK, b"d")
    assert read == Read(context=received.context, principal=ANA, request=ASK, prompt_digest=b"d")
    assert advance(read, Authenticated) == received.authenticated(ANA)


def test_a_stage_without_what_makes_it_is_an_error() -> None:
    with pytest.raises(TypeError, match="principal"):
        advance(Received(context=Bench().incoming().context), Authenticated)


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


async def test_a_request_ends_in_the_stage_that_it_reached() -> None:
    stages = []
    for spoil in ("allowed", "route", "limit", "nothing"):
        bench = Bench()
        if spoil == "allowed":
            bench.access.allowed = set()
        if spoil == "route":
            bench.catalog.cards = (replace(MINI, actions=("embeddings",)),)
        if spoil == "limit":
            bench.limiter.refusal = LimitVerdict(allowed=False, kind="tokens", reason="too many")
        with suppress(GatewayError):
            await bench.text()
        stages.append(type(bench.completion.stage))
    assert stages == [Authorized, Inspected, Estimated, Reserved]
