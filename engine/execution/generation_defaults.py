"""The sampling that a model's makers recommend, as vLLM applies it where nobody says otherwise.

Reads `generation_config.json` beside the weights, or the `general.sampling.*` keys of a GGUF file. A value that is out
of range is left out and logged: a model file must not stop a server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
_MOST_BYTES = 1 << 20
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (-1, 1 << 30),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}


def sampling_defaults(path: Path, metadata: Mapping[str, Any]) -> dict[str, float]:
    """By the names of `SamplingParams`. `metadata` is that of a GGUF file, and empty for a directory."""
    if metadata:
        found = {name: metadata[key] for key, name in _GGUF_KEYS.items() if key in metadata}
    else:
        config = _read(path / "generation_config.json")
        found = {name: config[name] for name in _RANGES if config.get(name) is not None}
    return {name: value for name, value in found.items() if _is_sound(name, value)}


def _is_sound(name: str, value: object) -> bool:
    low, high = _RANGES[name]
    sound = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if sound and name == "top_k":
        sound = isinstance(value, int)
    if not sound:
        log.warning("the model recommends a sampling value that is out of range and ignored", extra={"parameter": name})
    return sound


def _read(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return {}
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
