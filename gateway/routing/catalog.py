"""The models this gateway serves, by exact id. Built once from settings; knows no policy and no backend's health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.documents.schema_walk import nearest
from gateway.errors import ConfigError
from gateway.flow.values import ModelCard
from gateway.settings import ModelSettings, Settings

LOCAL_BACKEND = "local"
DEFAULT_WINDOW = 4096


class ModelCatalog:
    """Implements `flow.ports.Catalog`. Lookup is exact: no case folding, trimming or Unicode normalization (T14)."""

    def __init__(self, cards: Iterable[ModelCard]) -> None:
        """Raises `ConfigError` when two models share an id."""
        self._cards: dict[str, ModelCard] = {}
        for card in cards:
            if card.id in self._cards:
                raise ConfigError(f"two models are named `{card.id}`", hint="model ids and the virtual name are unique")
            self._cards[card.id] = card

    def get(self, model_id: str) -> ModelCard | None:
        return self._cards.get(model_id)

    def all(self) -> tuple[ModelCard, ...]:
        return tuple(self._cards.values())


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a model beyond its configuration."""

    created: int = 0
    context_window: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


def catalog_from(
    settings: Settings, found: Mapping[str, Found] | None = None, now: int = 0, own: Sequence[ModelCard] = ()
) -> ModelCatalog:
    """Cards for every configured model, then the virtual one. `found`: by model id, for what the configuration leaves
    open. `own`: what the gateway itself answers as a model. Raises `ConfigError` for what cannot be served."""
    real = [_card(model, settings, (found or {}).get(model.id, Found(now))) for model in settings.models]
    if not any(card.tier for card in real):
        return ModelCatalog([*real, *own])
    windows = [card.context_window for card in real if card.tier]
    virtual = ModelCard(
        id=settings.routing.virtual_model,
        backend="",
        virtual=True,
        created=now,
        languages=tuple(dict.fromkeys(language for card in real if card.tier for language in card.languages)),
        # What every target can take: a client that fills it is safe wherever it lands.
        context_window=min(windows),
        actions=tuple(
            dict.fromkeys(action for card in real if card.tier for action in card.actions if action != "embeddings")
        ),
        tools=any(card.tools for card in real if card.tier),
    )
    return ModelCatalog([*real, virtual, *own])


def _card(model: ModelSettings, settings: Settings, found: Found) -> ModelCard:
    if model.path is not None and model.upstream is not None:
        raise ConfigError(f"model `{model.id}` has both `path` and `upstream`", hint="give exactly one of them")
    if model.sha256 is not None and model.path is None:
        raise ConfigError(
            f"model `{model.id}` has a `sha256` and no `path`", hint="the hash is of files loaded here; drop it"
        )
    if model.upstream is not None and model.upstream not in settings.upstreams:
        close = nearest(model.upstream, settings.upstreams)
        raise ConfigError(
            f"model `{model.id}` names the upstream `{model.upstream}`, which is not configured",
            hint=close or "add it under `upstreams`",
        )
    routing = settings.routing
    price_in, price_out = model.prices_micro
    tier = model.tier
    if model.id == routing.small:
        tier = "small"
    elif model.id == routing.large:
        tier = "large"
    elif tier is not None and (routing.small if tier == "small" else routing.large) is not None:
        tier = None  # another model was named for this tier
    return ModelCard(
        id=model.id,
        backend=model.upstream or LOCAL_BACKEND,
        tier=tier,
        labels=dict(model.labels),
        context_window=model.context_window or found.context_window or DEFAULT_WINDOW,
        max_output_tokens=model.max_output_tokens,
        default_max_tokens=model.default_max_tokens,
        price_in_micro=price_in,
        price_out_micro=price_out,
        currency=model.currency,
        upstream_model=model.upstream_model,
        actions=model.actions,
        created=found.created if model.created is None else model.created,
        languages=model.languages,
        sampling=_sampling(model, found),
        tools=model.tools,
        embedding_dimensions=model.embedding_dimensions,
    )


def _sampling(model: ModelSettings, found: Found) -> dict[str, float]:
    """The configuration before what the files recommend."""
    written = {name: getattr(model, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    return {**found.sampling, **{name: value for name, value in written.items() if value is not None}}
