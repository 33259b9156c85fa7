"""What a running gateway says of its parts: at `/readyz`, and in metrics with a sentence for every number."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
from prometheus_client import generate_latest

from gateway.local.issuer import DevIssuer
from gateway.settings import ProviderSettings
from tests.fakes.running_gateway import RunningGateway
from tests.fakes.stage import Stage, stage_settings

PARTS = {"audit", "spool", "quarantine", "postgres", "policy", "identity", "limits", "descriptors", "batches"}


def test_readyz_names_each_part(stage: Stage) -> None:
    answer = httpx2.get(f"{stage.url}/readyz").json()
    assert answer["status"] == "ready"
    assert set(answer["parts"]) == PARTS
    assert set(answer["parts"].values()) <= {"ready", "empty", "unknown", "lowered"}


def test_a_provider_that_never_gave_its_keys_makes_the_replica_unready(
    issuer: DevIssuer, database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """Nobody of that provider could be let in: the load balancer must send them to a replica that knows the keys."""
    silent = ProviderSettings(
        name="silent",
        issuer="https://silent.test",
        audiences=("esclusa",),
        jwks_url="http://127.0.0.1:1/jwks",
        allow_http=True,
    )
    settings = stage_settings(
        database_url=database_url,
        valkey_url=valkey_url,
        issuer=issuer,
        upstream_url="http://127.0.0.1:1",
        spool_dir=tmp_path / "spool",
        overrides={"identity": {"providers": (issuer.provider_settings(), silent)}},
    )
    with RunningGateway(settings) as gateway:
        answer = httpx2.get(f"{gateway.url}/readyz")
        metrics = generate_latest(gateway.services.registry).decode()
    assert (answer.status_code, answer.json()["parts"]["identity"]) == (503, "no_keys")
    assert {name for name, state in answer.json()["parts"].items() if state not in ("ready", "empty", "unknown")} <= {
        "identity",
        "descriptors",
    }
    assert 'esclusa_part_ready{part="identity"} 0.0' in metrics


def test_metrics_name_each_part_and_explain_every_number(stage: Stage) -> None:
    text = generate_latest(stage.gateway.services.registry).decode()
    assert {name for name in PARTS if f'esclusa_part_ready{{part="{name}"}} 1.0' in text} == PARTS
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert len(helps) > 20
    for name, sentence in helps.items():
        assert sentence.endswith("."), name
        assert sentence[0].isupper() or sentence[0].isdigit(), name
        assert not re.fullmatch(r"The .* of the \w+ part\.", sentence), f"{name} has no sentence of its own"
