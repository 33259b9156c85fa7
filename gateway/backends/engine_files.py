"""Facts from the files of local models, read before they are loaded: the window and the recommended sampling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.settings import ModelSettings

Facts = tuple[int, int | None, Mapping[str, float]]
"""(Unix time of the newest file, window in tokens, sampling)."""


def read_model_files(models: Iterable[ModelSettings]) -> dict[str, Facts]:
    """By model id. What cannot be read is left out: loading it will say why."""
    found: dict[str, Facts] = {}
    for model in models:
        if model.path is not None and (facts := _facts(model.path)) is not None:
            found[model.id] = facts
    return found


def _facts(path: str) -> Facts | None:
    try:
        from engine import EngineError, read_facts
    except ImportError:
        return None
    try:
        facts = read_facts(path)
        place = Path(path)
        files = [file for file in place.iterdir() if file.is_file()] if place.is_dir() else [place]
        created = max([int(file.stat().st_mtime) for file in files], default=0)
    except (EngineError, OSError):
        return None
    return created, facts.max_position_embeddings, facts.sampling
