from pathlib import Path
from typing import Any

import pytest

from tests.fakes.stage import (  # noqa: F401
    _plain_upstream,
    issuer,
    stage,
    stage_database_url,
    upstream_thread,
)
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def stage_overrides(tiny_model_path: Path) -> dict[str, Any]:
    """`tiny` is a real model in the real engine; `mini` stays a scripted upstream."""
    return {
        "models": (
            {
                "id": "tiny",
                "tier": "large",
                "path": str(tiny_model_path),
                "context_window": 256,
                "actions": ("chat", "completions", "embeddings"),
            },
            {"id": "mini", "tier": "small", "upstream": "up", "context_window": 512},
        ),
        "engine": {"device": "cpu", "kv_cache_bytes": 4 << 20, "threads": 1, "max_num_seqs": 8},
        "audit": {"mode": "strict"},
    }
