"""Where the demo models lie after `esclusa models fetch`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SMALL = "SmolLM2-135M-Instruct.Q4_1.gguf"
LARGE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
ENCODER = "all-minilm-l6-v2"


def demo_model(name: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "esclusa" / "models" / name
    if not path.exists():
        pytest.fail(f"the demo model {name} is missing: run `esclusa models fetch`")
    return path
