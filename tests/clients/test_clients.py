"""Real clients at stated versions against the real gateway and the demo models: `make clients`.

Each client is a script that runs in a virtual environment of its own and says of each feature whether it worked. What
they said becomes the table of `docs/reference/clients.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.local.issuer import DevIssuer
from gateway.places import default_policy
from tests.clients.table import RESULTS
from tests.fakes.demo_models import ENCODER, LARGE, demo_model
from tests.fakes.openai_upstream import Upstream
from tests.fakes.running_gateway import RunningGateway
from tests.fakes.stage import (  # noqa: F401
    Stage,
    _plain_upstream,
    issuer,
    stage_database_url,
    stage_settings,
    upstream_thread,
)

HERE = Path(__file__).parent
CHAT, EMBEDDING = "qwen2.5-coder-0.5b-instruct", "all-minilm-l6-v2"
LIMIT_S = 600
ROLES = ("analyst", "employee")
ADMINISTRATORS = ("platform-admin", "auditor", "policy-admin", "content-reader")
SCRIPTS = {
    "main": ["openai_python", "anthropic_python", "langchain_client", "llamaindex_client", "instructor_client",
             "pydantic_ai_client", "openai_agents_client", "litellm_client", "llm_client", "smolagents_client",
             "dspy_client", "outlines_client", "lm_eval_client", "schemathesis_client"],
    "aider": ["aider_client"],
    "guidellm": ["guidellm_client"],
    "node": ["openai_node.mjs", "vercel_ai.mjs", "anthropic_node.mjs"],
}  # fmt: skip
"""By environment: the folder `.venv-<name>` beside this file, or `node_modules`."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def stage(
    upstream_thread: Any,  # noqa: F811
    issuer: DevIssuer,  # noqa: F811
    stage_database_url: str,  # noqa: F811
    valkey_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    local = {"labels": {"hosting": "local"}}
    settings = stage_settings(
        database_url=stage_database_url,
        valkey_url=valkey_url,
        issuer=issuer,
        upstream_url=upstream_thread.script.url,
        spool_dir=tmp_path_factory.mktemp("spool"),
        overrides={
            "access": {"policy_file": unlimited(tmp_path_factory.mktemp("policy"))},
            "models": (
                {"id": CHAT, "tier": "large", "path": str(demo_model(LARGE)), "context_window": 4096, **local},
                {
                    "id": EMBEDDING,
                    "path": str(demo_model(ENCODER)),
                    "context_window": 256,
                    "actions": ("embeddings",),
                    **local,
                },
            ),
            "identity": {"providers": (issuer.provider_settings(),), "api_key_pepper": SecretStr("p" * 32)},
            "engine": {"device": "cpu", "kv_cache_bytes": 256 << 20, "max_num_seqs": 8},
        },
    )
    with RunningGateway(settings, ready_timeout_s=180) as gateway:
        yield Stage(gateway.url, gateway, Upstream(), issuer, stage_database_url)


def unlimited(folder: Path) -> Path:
    """The shipped policy without its limits: an evaluation sends more than 60 requests a minute."""
    text = default_policy().read_text(encoding="utf-8")
    start, end = text.index("\nlimits:"), text.index("\ntests:")
    file = folder / "policy.yaml"
    file.write_text(text[:start] + text[end:], encoding="utf-8")
    return file


def command_of(environment: str, script: str) -> list[str]:
    if environment == "node":
        return ["node", str(HERE / script)]
    folder = os.environ.get(f"ESCLUSA_CLIENTS_{environment.upper()}") or str(HERE / f".venv-{environment}")
    return [f"{folder}/bin/python", str(HERE / f"{script}.py")]


CASES = [(environment, script) for environment, scripts in SCRIPTS.items() for script in scripts]


@pytest.mark.parametrize(("environment", "script"), CASES, ids=[script for _, script in CASES])
def test_every_feature_of_the_client_works(stage: Stage, environment: str, script: str, tmp_path: Path) -> None:
    command = command_of(environment, script)
    installed = (HERE / "node_modules").is_dir() if environment == "node" else Path(command[0]).exists()
    if not installed:
        pytest.skip("`make clients` or `make clients-node` installs this client")
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "ESCLUSA_URL": stage.url,
            "ESCLUSA_KEY": stage.token(
                "analyst", "employee", *(ADMINISTRATORS if script == "schemathesis_client" else ())
            ),
            "ESCLUSA_CHAT_MODEL": CHAT,
            "ESCLUSA_EMBEDDING_MODEL": EMBEDDING,
            "ESCLUSA_TOKENIZER": str(demo_model(ENCODER)),
            "PYTHONPATH": str(HERE),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            **{name: os.environ[name] for name in ("ESCLUSA_FUZZ_REPORT", "ESCLUSA_FUZZ_CASES") if name in os.environ},
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"client"')]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert lines, ran.stderr[-3000:]
    failed = [f"{line['feature']}: {line['note']}" for line in lines if not line["ok"]]
    assert not failed, "\n".join(failed)
