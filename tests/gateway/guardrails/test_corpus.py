"""The corpus in Spanish and English: everything proven is found, everything harmless passes the strictest policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.flow.values import ChatRequest, Inspection, Message, Obligations
from gateway.guardrails.actions import actions_of
from gateway.guardrails.phrases import count_phrases
from gateway.guardrails.prompts import Prompts
from gateway.guardrails.scan import AMONG_DIGITS, ANYWHERE, scan
from tests.fakes.made_up_keys import KEYS, with_keys

FOLDER = Path(__file__).parents[2] / "data" / "guardrails"
STRICTEST = Obligations(redaction="block", guardrails="strict")


def load(name: str) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return [{**sample, "text": with_keys(sample["text"])} for sample in samples]


ORDINARY: list[str] = [
    text for texts in yaml.safe_load((FOLDER / "ordinary.yaml").read_text(encoding="utf-8")).values() for text in texts
]
HOSTILE, HARMLESS = load("hostile.yaml"), load("harmless.yaml")


def inspect(text: str, obligations: Obligations = STRICTEST) -> Inspection:
    actions = actions_of(obligations)
    assert actions is not None
    return Prompts(actions, lambda: None).inspect(ChatRequest("mini", (Message.of_text("user", text),)))


def test_the_corpus_is_large_and_in_two_languages() -> None:
    assert len(HOSTILE) >= 100
    assert len(HARMLESS) >= 70
    for samples in (HOSTILE, HARMLESS):
        for words in (r"\b(the|my|your|is|are|and)\b", r"\b(el|la|los|las|una?|es|de)\b"):
            assert sum(re.search(words, sample["text"].lower()) is not None for sample in samples) >= 10


@pytest.mark.parametrize("sample", HOSTILE, ids=lambda sample: sample["text"][:40])
def test_what_a_sample_holds_is_found_and_nothing_else_is_proven(sample: dict[str, Any]) -> None:
    spans = scan(sample["text"])
    assert [span.category for span in spans if span.certain] == sample.get("find", [])
    assert {span.category for span in spans if not span.certain} >= set(sample.get("likely", []))
    assert set(count_phrases(sample["text"], 8192, lambda: None)) >= set(sample.get("phrases", []))


@pytest.mark.parametrize("sample", HOSTILE, ids=lambda sample: sample["text"][:40])
def test_the_strictest_policy_refuses_what_is_proven_and_redacts_what_is_likely(sample: dict[str, Any]) -> None:
    seen = inspect(sample["text"])
    refused = bool(sample.get("find") or sample.get("phrases"))
    assert seen.action == ("block" if refused else "redact")


@pytest.mark.parametrize("sample", HARMLESS, ids=lambda sample: sample["text"][:40])
def test_the_strictest_policy_refuses_nothing_harmless(sample: dict[str, Any]) -> None:
    seen = inspect(sample["text"])
    assert seen.action == ("redact" if sample.get("likely") else "allow")
    assert {finding.category for finding in seen.findings} == set(sample.get("likely", []))


def test_the_ordinary_texts_are_many_and_in_two_languages() -> None:
    assert len(set(ORDINARY)) == len(ORDINARY) >= 280
    for words in (r"\b(the|my|your|is|are|and|of|for)\b", r"\b(el|la|los|las|una?|es|de|del)\b"):
        assert sum(re.search(words, text.lower()) is not None for text in ORDINARY) >= 40


@pytest.mark.parametrize("text", ORDINARY, ids=lambda text: text[:40])
def test_nothing_is_found_in_an_ordinary_text(text: str) -> None:
    assert [(span.category, text[span.start : span.end]) for span in scan(text)] == []


def test_nothing_is_found_in_ordinary_texts_one_below_the_other() -> None:
    text = "\n\n".join(ORDINARY)
    assert [(span.category, text[span.start : span.end]) for span in scan(text)] == []


def test_a_word_for_an_order_keeps_only_what_is_not_proven_from_being_found() -> None:
    assert scan("pedido 12345678-5") == []
    for text in ("RUT del pedido: 12345678-5", "pedido 12.345.678-5", "factura a 36796476H", "ticket: ana@example.com"):
        assert scan(text) != []


def test_every_proven_category_has_a_sample() -> None:
    sampled = {category for sample in HOSTILE for category in (*sample.get("find", []), *sample.get("likely", []))}
    categories = {finder.category for finder in (*ANYWHERE, *AMONG_DIGITS)}
    assert categories - sampled == {"bearer_token", "pypi_token"}


def test_each_made_up_key_is_found_by_its_own_form() -> None:
    found = {name: [span.category for span in scan(f"x {key} y") if span.certain] for name, key in KEYS.items()}
    renamed = {"github_pat": "github_token", "openssh_key": "private_key"}
    expected = {name: [renamed.get(name, name)] for name in KEYS}
    expected["aws_secret_key"] = []  # forty signs are a secret only behind its name
    assert found == expected


@pytest.mark.parametrize("sample", HOSTILE, ids=lambda sample: sample["text"][:40])
def test_a_redacted_prompt_holds_nothing_that_can_be_found_again(sample: dict[str, Any]) -> None:
    seen = inspect(sample["text"], Obligations(redaction="redact", guardrails="off"))
    if seen.request is not None:
        assert scan(seen.request.messages[0].texts[0]) == []
    assert (seen.action == "redact") is bool(sample.get("find") or sample.get("likely"))
