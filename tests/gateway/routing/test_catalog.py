"""The catalog: exact ids, tiers by configuration, the virtual model, mistakes found at start."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.routing.catalog import LOCAL_BACKEND, catalog_from
from gateway.settings import ModelSettings, RoutingSettings, Settings, UpstreamSettings

SMALL = ModelSettings(id="smollm2-135m-instruct", tier="small", path="/m/s", context_window=2048, price_in_micro=5)
LARGE = ModelSettings(id="qwen2.5-coder-0.5b-instruct", tier="large", path="/m/l", context_window=32_768)


def test_models_come_in_the_order_of_configuration_then_the_virtual_one() -> None:
    catalog = catalog_from(Settings(models=(LARGE, SMALL)))
    assert [card.id for card in catalog.all()] == [LARGE.id, SMALL.id, "auto"]


def test_a_card_carries_what_its_model_is_configured_with() -> None:
    card = catalog_from(Settings(models=(SMALL,))).get(SMALL.id)
    assert card is not None
    assert (card.backend, card.tier, card.context_window, card.price_in_micro) == (LOCAL_BACKEND, "small", 2048, 5)


def test_the_virtual_model_promises_only_the_window_that_every_target_has() -> None:
    auto = catalog_from(Settings(models=(SMALL, LARGE))).get("auto")
    assert auto is not None
    assert (auto.virtual, auto.context_window) == (True, 2048)


@pytest.mark.parametrize("tools", [(True, False), (False, False)])
def test_the_virtual_model_calls_tools_where_some_target_does(tools: tuple[bool, bool]) -> None:
    models = [model.model_copy(update={"tools": able}) for model, able in zip((SMALL, LARGE), tools, strict=True)]
    cards = catalog_from(Settings(models=tuple(models))).all()
    assert [card.tools for card in cards] == [*tools, any(tools)]


def test_without_tiers_there_is_no_virtual_model() -> None:
    assert catalog_from(Settings(models=(ModelSettings(id="m", path="/m"),))).get("auto") is None


@pytest.mark.parametrize(
    "name", ["AUTO", "auto ", " auto", "auto\u200b", "\uff41uto", "Smollm2-135m-instruct", "", "*", "smollm2-*"]
)
def test_a_name_that_only_looks_like_a_model_is_not_that_model(name: str) -> None:
    assert catalog_from(Settings(models=(SMALL, LARGE))).get(name) is None


def test_routing_settings_choose_the_models_of_the_tiers() -> None:
    other = ModelSettings(id="other", path="/m/o")
    settings = Settings(models=(SMALL, LARGE, other), routing=RoutingSettings(large="other"))
    tiers = {card.id: card.tier for card in catalog_from(settings).all()}
    assert (tiers[SMALL.id], tiers[LARGE.id], tiers["other"]) == ("small", None, "large")


def test_an_upstream_model_names_its_upstream_as_backend() -> None:
    settings = Settings(
        models=(ModelSettings(id="m", upstream="vllm", upstream_model="meta/m"),),
        upstreams={"vllm": UpstreamSettings(base_url="http://127.0.0.1:1/v1")},
    )
    card = catalog_from(settings).get("m")
    assert card is not None
    assert (card.backend, card.upstream_model) == ("vllm", "meta/m")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ((SMALL, SMALL), "two models are named `smollm2-135m-instruct`"),
        ((SMALL, ModelSettings(id="auto", path="/m")), "two models are named `auto`"),
        ((ModelSettings(id="m", path="/m", upstream="vllm"),), "both `path` and `upstream`"),
        ((ModelSettings(id="m", upstream="vlm"),), "did you mean `vllm`"),
        ((ModelSettings(id="m", upstream="vllm", sha256="a" * 64),), "`sha256` and no `path`"),
    ],
)
def test_mistakes_end_the_start_with_what_was_found(models: tuple[ModelSettings, ...], message: str) -> None:
    settings = Settings(models=models, upstreams={"vllm": UpstreamSettings(base_url="http://127.0.0.1:1/v1")})
    with pytest.raises(ConfigError, match=message):
        catalog_from(settings)


@pytest.mark.parametrize(
    ("written", "micro"),
    [
        ({"price_in": 0.60, "price_out": "0.8"}, (600_000, 800_000)),
        ({"price_in": 0.1, "price_out": 1_234.567891}, (100_000, 1_234_567_891)),
        ({"price_in_micro": 600_000}, (600_000, 0)),
        ({}, (0, 0)),
    ],
)
def test_prices_are_units_of_money_per_million_tokens_and_exact(written: dict[str, Any], micro: object) -> None:
    (card,) = catalog_from(Settings(models=(ModelSettings(id="m", path="/m", **written),))).all()
    assert (card.price_in_micro, card.price_out_micro) == micro


@pytest.mark.parametrize(
    "written", [{"price_in": 0.6, "price_in_micro": 5}, {"price_out": 0.0000001}, {"price_in": -1}]
)
def test_a_price_that_is_written_twice_or_cannot_be_counted_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="price"):
        ModelSettings(id="m", path="/m", **written)
