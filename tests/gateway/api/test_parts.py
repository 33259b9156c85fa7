"""What a running gateway says of its parts: at `/readyz`, and in metrics with a sentence for every number."""

from __future__ import annotations

import re

import httpx2
from prometheus_client import generate_latest

from tests.fakes.stage import Stage

PARTS = {"audit", "spool", "quarantine", "postgres", "policy", "identity", "limits", "descriptors"}


def test_readyz_names_each_part(stage: Stage) -> None:
    answer = httpx2.get(f"{stage.url}/readyz").json()
    assert answer["status"] == "ready"
    assert set(answer["parts"]) == PARTS
    assert set(answer["parts"].values()) <= {"ready", "empty", "unknown", "lowered"}


def test_metrics_name_each_part_and_explain_every_number(stage: Stage) -> None:
    text = generate_latest(stage.gateway.services.registry).decode()
    assert {name for name in PARTS if f'esclusa_part_ready{{part="{name}"}} 1.0' in text} == PARTS
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert len(helps) > 20
    for name, sentence in helps.items():
        assert sentence.endswith("."), name
        assert sentence[0].isupper() or sentence[0].isdigit(), name
        assert not re.fullmatch(r"The .* of the \w+ part\.", sentence), f"{name} has no sentence of its own"
