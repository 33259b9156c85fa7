from __future__ import annotations

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

RULE = (
    "  - {{id: {role}, effect: allow, subjects: {{roles: [{role}]}}, actions: [chat, completions, embeddings],"
    " models: {{ids: [mini, tiny, embed]}}, obligations: {{{actions}}}}}\n"
)
DUTIES = {
    "plain": "maxOutputTokens: 500",
    "flagged": "redaction: flag",
    "redacted": "redaction: redact",
    "blocked": "redaction: block",
    "strict": "redaction: flag, guardrails: strict",
    "steered": "guardrails: strict",
    "lenient": 'redaction: redact, guardrails: "off"',
}
POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: guardrails}
roles: {plain: {}, flagged: {}, redacted: {}, blocked: {}, strict: {}, steered: {}, lenient: {}, routed: {}}
rules:
  - {id: auto, effect: allow, subjects: {roles: [routed]}, actions: [chat], models: {ids: [auto]}}
  - id: routed
    effect: allow
    subjects: {roles: [routed]}
    actions: [chat]
    models: {ids: [mini]}
    obligations: {redaction: block}
""" + "".join(RULE.format(role=role, actions=actions) for role, actions in DUTIES.items())


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`mini` runs on the scripted upstream, `tiny` on the engine of this process."""
    folder: Path = tmp_path_factory.mktemp("guardrails")
    (folder / "policy.yaml").write_text(POLICY)
    write_tiny_model(folder)
    return {
        "access": {"policy_file": folder / "policy.yaml"},
        "models": (
            {"id": "mini", "tier": "small", "upstream": "up", "context_window": 4096},
            {"id": "tiny", "path": str(folder)},
            {"id": "embed", "upstream": "up", "actions": ("embeddings",)},
        ),
        "engine": {"device": "cpu", "kv_cache_bytes": 4 << 20, "threads": 1, "max_num_seqs": 4},
    }
