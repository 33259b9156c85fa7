"""The redaction matrix through the gateway: whoever writes a number so, no model gets it, whole or streamed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.redaction import KINDS, NONE, PART, sections
from benchmarks.redaction_writings import OTHERS, SECTIONS
from gateway.api import chat
from gateway.flow.values import Obligations
from gateway.guardrails.actions import actions_of
from gateway.guardrails.prompts import Prompts
from gateway.guardrails.scan import scan
from gateway.guardrails.spans import without
from gateway.guardrails.window import Window
from tests.gateway.guardrails import test_model_reads

CELLS = {title: dict(rows) for title, rows in sections()}


def cases(title: str) -> list[tuple[str, str, str]]:
    """Kind, the text around and over the value, the value as it is written."""
    found = []
    for writing in SECTIONS[title]:
        for kind, (word, value) in KINDS.items():
            if kind not in OTHERS or writing.all_kinds:
                before, written, after = writing.way(value)
                found.append((kind, f"El {word} del cliente es {before}{written}{after} y nada más.", written))
    return found


def read_by_model(content: Any) -> str:
    """Through the gateway's own parsing and inspection, with the duties of an employee."""
    actions = actions_of(Obligations(redaction="redact"))
    assert actions is not None
    request = chat.parse({"model": "m", "messages": [{"role": "user", "content": content}]})
    return (Prompts(actions, lambda: None).inspect(request).request or request).messages[-1].texts[0]


@pytest.mark.parametrize("title", SECTIONS)
def test_no_writing_of_the_matrix_reaches_a_model(title: str) -> None:
    passed = [(kind, text) for kind, text, written in cases(title) if written in read_by_model(text)]
    assert passed == []


@pytest.mark.parametrize("title", SECTIONS)
def test_two_parts_of_a_content_are_one_text(title: str) -> None:
    for kind, text, written in cases(title):
        parts = [{"type": "text", "text": text}, {"type": "text", "text": "Gracias."}]
        assert written not in read_by_model(parts), (kind, text)


@pytest.mark.parametrize("title", SECTIONS)
def test_a_streamed_answer_hides_the_same(title: str) -> None:
    for kind, text, _ in cases(title):
        window, shown = Window(scan), ""
        for sign in text:
            done = window.advance(sign)
            shown += without(done.text, done.spans)
        done = window.advance("", last=True)
        assert shown + without(done.text, done.spans) == without(text, scan(text)), (kind, text)


def test_the_matrix_is_large() -> None:
    cells = [cell for rows in CELLS.values() for row in rows.values() for cell in row if cell != NONE]
    assert len(cells) > 2000
    assert cells.count(PART) < 10


def test_a_character_of_unicode_hides_no_number() -> None:
    test_model_reads.check_every_character(step=64)
