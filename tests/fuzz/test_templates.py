"""Mutated chat templates: each renders, or is refused by a typed error, within its limits."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.text.chat_template import ChatTemplate
from tests.fakes.mutations import mutate
from tests.fuzz.conftest import Budget

MESSAGES = [
    {"role": "system", "content": "Eres útil."},
    {"role": "user", "content": "¿Qué es una esclusa? {{ 7*7 }} {% raw %}"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "a\x00b\u202e😀"},
]
WORDS = (
    "range(99999)", "2**9**9", "*999999999", "|list", "|join(messages)", "loop.index", ".__class__", "|attr('x')",
    "messages", "{% for x in messages %}", "{% endfor %}", "{{", "}}", "{%", "%}", "namespace(", "|format(9)", "'%0*d'",
)  # fmt: skip


def mutated(source: str, seed: int) -> str:
    draw = random.Random(seed)
    if draw.random() < 0.5:
        at = draw.randrange(len(source) + 1)
        return source[:at] + draw.choice(WORDS) + source[at:]
    return mutate(source.encode(), seed).decode("utf-8", "replace")


def test_a_mutated_template_renders_or_is_refused(corpus: Path, budget: Budget) -> None:
    sources = [path.read_text() for path in sorted((corpus / "templates").glob("*.jinja"))]
    outcomes: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(budget.first_seed, budget.first_seed + budget.count(80)):
        if time.monotonic() - started > budget.seconds:
            break
        try:
            template = ChatTemplate(mutated(sources[seed % len(sources)], seed), "<s>", "</s>", cpu_limit_s=1.0)
        except EngineError as error:
            outcomes[type(error).__name__] += 1
            continue
        try:
            assert isinstance(template.render(MESSAGES), str), f"seed {seed}"
            outcomes["rendered"] += 1
        except EngineError as error:
            outcomes[type(error).__name__] += 1
        finally:
            template.close()
    sys.stdout.write(f"fuzz templates: {dict(outcomes)}\n")
    assert outcomes["rendered"] > 0


@pytest.mark.parametrize("name", ["chatml", "llama3", "macro", "namespace", "generation", "nested-loops"])
def test_the_corpus_itself_renders(name: str, corpus: Path) -> None:
    template = ChatTemplate((corpus / "templates" / f"{name}.jinja").read_text(), "<s>", "</s>")
    assert template.render(MESSAGES)
    template.close()
