"""Mutated policy documents: each is a policy or is refused with places, in YAML and in JSON."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.access.document.parsing import parse_policy
from gateway.access.document.problems import PolicyInvalid
from tests.fakes.mutations import mutate
from tests.fuzz.conftest import Budget

POLICIES = Path(__file__).parents[2] / "policies"
VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, "", "x" * 10_000, [], {}, [[]], {"": {}}, "*", "!!python/x")


def twisted(tree: Any, draw: random.Random) -> Any:
    """The document with one value, somewhere in it, replaced."""
    if isinstance(tree, dict) and tree and draw.random() < 0.9:
        key = draw.choice(list(tree))
        return {**tree, key: twisted(tree[key], draw)}
    if isinstance(tree, list) and tree and draw.random() < 0.9:
        at = draw.randrange(len(tree))
        return [*tree[:at], twisted(tree[at], draw), *tree[at + 1 :]]
    return draw.choice(VALUES)


@pytest.mark.parametrize("syntax", ["yaml", "json"])
def test_a_mutated_policy_is_accepted_or_refused(syntax: Any, budget: Budget, corpus: Path) -> None:
    files = [POLICIES / "default.yaml", *sorted((corpus / "policies").glob("*.yaml"))]
    texts = [file.read_text(encoding="utf-8") for file in files]
    trees = [yaml.safe_load(text) for text in texts[:1]]
    outcomes: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(budget.first_seed, budget.first_seed + budget.count(150)):
        if time.monotonic() - started > budget.seconds:
            break
        draw = random.Random(seed)
        if syntax == "json" or seed % 2:
            raw = json.dumps(twisted(draw.choice(trees), draw)).encode()
        else:
            raw = mutate(draw.choice(texts).encode(), seed)
        try:
            parse_policy(raw, name="fuzz", syntax=syntax)
            outcomes["accepted"] += 1
        except PolicyInvalid as error:
            outcomes[type(error).__name__] += 1
    sys.stdout.write(f"fuzz policies {syntax}: {dict(outcomes)}\n")
    assert outcomes["PolicyInvalid"] > 0


def test_every_document_of_the_corpus_is_refused(corpus: Path) -> None:
    files = sorted((corpus / "policies").glob("*.yaml"))
    assert len(files) >= 6
    for file in files:
        with pytest.raises(PolicyInvalid):
            parse_policy(file.read_bytes(), name=file.name)
