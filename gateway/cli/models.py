"""`esclusa models`: what the demo uses, where it comes from, fetching it ahead of time; and verifying any model."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gateway.local.models import ModelAsset

app = typer.Typer(help="The demo models: list and fetch. Any quantized one: verify.", no_args_is_help=True)


@app.command("list")
def list_models(as_json: bool = typer.Option(False, "--json", help="JSON on stdout.")) -> None:
    """Show the demo models and whether they are on this disk.

    Example: esclusa models list --json
    """
    if as_json:
        print(json.dumps([_row(asset) for asset in _assets(())], indent=2))
        return
    for asset in _assets(()):
        print(f"{asset.id:32} {asset.tier:6} {asset.size_bytes >> 20:5} MiB  {_path(asset) or 'not fetched'}")


@app.command("fetch")
def fetch_models(
    ids: list[str] = typer.Argument(None, help="Model ids; all when none is named."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Download the demo models into the cache, verified by SHA-256; what is there already is verified too.

    Example: esclusa models fetch smollm2-135m-instruct
    """
    from gateway.local.models import fetch

    for asset in _assets(tuple(ids or ())):
        path = fetch(asset, models_dir(), ProgressLine(asset.title), trust_seal=False)
        if as_json:
            print(json.dumps({"id": asset.id, "path": str(path)}))
    if not as_json:
        print(f"models are in {models_dir()}", file=sys.stderr)


@app.command("verify")
def verify_checkpoint(
    path: str = typer.Argument(..., help="Model directory whose weights are stored quantized."),
    backend: str = typer.Option("cpu", help="Whose products are compared with the dense ones: cpu or reference."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Find out how quantized weights are really stored, and check every matrix of them.

    Reads the model in each way that files of its format are known to be written in, and measures how well it then knows
    a text. Exit 1 when the configuration says another way, words change when they are packed again, or a product of the
    kernels is not that of the dense weights.

    Example: esclusa models verify ./llama-awq
    """
    from gateway.cli.verify import run_verification

    run_verification(path, backend, as_json)


def models_dir() -> Path:
    from gateway.local.paths import cache_dir

    return cache_dir() / "models"


class ProgressLine:
    """Progress on stderr: one updating line on a terminal, a line every five seconds elsewhere."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = time.monotonic() if not sys.stderr.isatty() else 0.0
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        finished = done >= total
        if now - self._last < (0.1 if terminal else 5.0) and not (terminal and finished):
            return
        self._last = now
        percent = f"{100 * done // total:3d} %" if total else ""
        line = f"{self._title}: {what} {percent} ({done >> 20} of {total >> 20} MiB)"
        print(f"\r\x1b[2K{line}" if terminal else line, end="\n" if finished or not terminal else "", file=sys.stderr)


def _assets(ids: tuple[str, ...]) -> tuple[ModelAsset, ...]:
    from gateway.local.models import DEMO_MODELS

    known = {asset.id: asset for asset in DEMO_MODELS}
    for unknown in set(ids) - set(known):
        raise typer.BadParameter(f"{unknown!r} is not a demo model; there are {', '.join(known)}")
    return tuple(known[name] for name in ids) if ids else DEMO_MODELS


def _path(asset: ModelAsset) -> str | None:
    path = models_dir() / asset.filename
    return str(path) if path.exists() else None


def _row(asset: ModelAsset) -> dict[str, object]:
    return {
        "id": asset.id,
        "tier": asset.tier,
        "title": asset.title,
        "license": asset.license,
        "size_bytes": asset.size_bytes,
        "sha256": asset.sha256,
        "sources": [str(source) for source in asset.sources],
        "path": _path(asset),
    }
