"""Defaults for the parts an operator did not configure: stores, demo models, the dev issuer.

Takes settings, returns settings with the gaps filled; what it starts lives until the given stack is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from ipaddress import ip_address
from pathlib import Path

from prometheus_client.registry import Collector
from pydantic import SecretStr

from gateway.errors import ConfigError
from gateway.local.datastores import open_stores
from gateway.local.issuer import DevIssuer, api_key_pepper, content_keys
from gateway.local.models import DEMO_MODELS, ModelAsset, fetch
from gateway.local.paths import cache_dir, data_dir, ensure_dir, snapshot_dir, spool_dir
from gateway.settings import ModelSettings, Settings

DEMO_CONTEXT_WINDOW = 4096
DEMO_MAX_TOKENS = 512
"""For callers who name none: models this small may write without end."""
DEMO_PRICES_MICRO = {"small": (20_000, 40_000), "large": (80_000, 160_000)}
"""Input and output, per million tokens: invented, so that the demo has costs to show."""

DEMO_SENTENCE_TOKENS, DEMO_EMBEDDING_PRICE_MICRO = 256, 10_000
DEMO_LANGUAGES = {
    "small": ("en",),
    "large": ("en", "es", "pt", "fr", "de", "it", "ru", "zh", "ja", "ko", "vi", "th", "ar"),
    "embedding": ("en",),
}
"""As the makers of the models say."""
DEMO_SAMPLING = {"small": (0.2, 0.9), "large": (0.7, 0.8)}
"""Temperature and top_p that the models' makers recommend, for callers who name none."""

Report = Callable[[str, float], None]
"""(stage, percent)."""


async def fill_gaps(
    settings: Settings, stack: AsyncExitStack, report: Report, collectors: list[Collector] | None = None
) -> Settings:
    """Start private stores for the URLs that are unset; in local mode also add the dev issuer and the demo models.

    What can be measured of them is added to `collectors`. Raises `ConfigError` when something cannot be had or local
    mode would be reachable from outside.
    """
    if settings.local.enabled:
        require_loopback(settings.http.host)
    home = ensure_dir(data_dir(settings))
    fetching = asyncio.create_task(_demo_models(settings, report))
    report("starting Postgres and Valkey", 0.0)
    try:
        urls = await stack.enter_async_context(open_stores(settings))
        models = await fetching
    finally:
        fetching.cancel()
    if urls.keeper is not None and collectors is not None:
        collectors.append(urls.keeper)
    store = settings.store.model_copy(
        update={"database_url": SecretStr(urls.database_url), "redis_url": SecretStr(urls.redis_url)}
    )
    audit = settings.audit.model_copy(update={"spool_dir": spool_dir(settings)})
    access = settings.access.model_copy(update={"snapshot_dir": snapshot_dir(settings)})
    filled = settings.model_copy(update={"store": store, "audit": audit, "access": access, "models": models})
    if not settings.local.enabled:
        return filled
    issuer = await asyncio.to_thread(DevIssuer.open, home)
    audit = filled.audit
    if audit.content_keys is None and audit.content_key_file is None:
        made = SecretStr(await asyncio.to_thread(content_keys, home))
        filled = filled.model_copy(update={"audit": audit.model_copy(update={"content_keys": made})})
    pepper = settings.identity.api_key_pepper or SecretStr(await asyncio.to_thread(api_key_pepper, home))
    providers = (*settings.identity.providers, issuer.provider_settings())
    identity = settings.identity.model_copy(update={"providers": providers, "api_key_pepper": pepper})
    return filled.model_copy(update={"identity": identity})


def require_loopback(host: str) -> None:
    """Local mode signs whatever it is asked to, so nobody else may reach it. Raises `ConfigError`."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"local mode would listen on `{host}`; it binds to loopback only",
            hint="drop --host, or configure an identity provider and leave --local out",
        )


async def _demo_models(settings: Settings, report: Report) -> tuple[ModelSettings, ...]:
    """The configured models, or the demo models in local mode when nothing else is configured."""
    if settings.models or settings.upstreams or not settings.local.enabled:
        return settings.models
    folder = cache_dir() / "models"
    return tuple([_card(asset, await asyncio.to_thread(_fetch, asset, folder, report)) for asset in DEMO_MODELS])


def _fetch(asset: ModelAsset, folder: Path, report: Report) -> Path:
    def progress(what: str, done: int, total: int) -> None:
        report(f"{asset.id}: {what}", 100 * done / total if total else 0.0)

    return fetch(asset, folder, progress)


def _card(asset: ModelAsset, path: Path) -> ModelSettings:
    if asset.tier == "embedding":
        return ModelSettings(
            id=asset.id,
            path=str(path),
            sha256=asset.sha256,
            context_window=DEMO_SENTENCE_TOKENS,
            labels={"hosting": "local", "license": asset.license},
            actions=("embeddings",),
            languages=DEMO_LANGUAGES[asset.tier],
            price_in_micro=DEMO_EMBEDDING_PRICE_MICRO,
        )
    price_in, price_out = DEMO_PRICES_MICRO[asset.tier]
    temperature, top_p = DEMO_SAMPLING[asset.tier]
    return ModelSettings(
        id=asset.id,
        tier="small" if asset.tier == "small" else "large",
        path=str(path),
        sha256=asset.sha256,
        context_window=DEMO_CONTEXT_WINDOW,
        labels={"hosting": "local", "license": asset.license},
        temperature=temperature,
        top_p=top_p,
        default_max_tokens=DEMO_MAX_TOKENS,
        stop_on_repetition=True,
        languages=DEMO_LANGUAGES[asset.tier],
        price_in_micro=price_in,
        price_out_micro=price_out,
    )
