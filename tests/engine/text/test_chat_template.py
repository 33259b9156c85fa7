"""Chat templates are programs of strangers: what they may do, what they may not, what is left after one misbehaved."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine.errors import EngineFault, InvalidInput, UnsupportedModel
from engine.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hola"}]
MIB = 1 << 20


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", cpu_limit_s=0.5, memory_limit_bytes=256 * MIB)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(x=9) %}{% for a in range(99999) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ messages[0].role.ljust(3000000000) }}",
        "{{ '%999999999999d' % messages|length }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{{ messages|slice(999999999)|list|length }}",
        "{{ (messages * 999999999)|length }}",
        "{{ messages[0].content ** messages[0].content }}{% for a in range(99999) %}{{ '%09999999d' % a }}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_much_ends_its_request_and_not_the_process(source: str) -> None:
    hostile = template(source)
    for _ in range(2):  # the second request finds a fresh child
        with pytest.raises((EngineFault, InvalidInput)):
            hostile.render(HELLO)
    hostile.close()


@pytest.mark.parametrize("source", ["{{ 2 ** (2 ** 40) }}", "{{ 'a' * 9999999999 }}", "{{ [0] * 9999999999 }}"])
def test_a_template_whose_constants_take_too_much_is_no_model(source: str) -> None:
    """jinja2 computes them while it compiles; where it leaves them to the rendering, they end there."""
    with pytest.raises((UnsupportedModel, EngineFault, InvalidInput)):
        template(source).render(HELLO)


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ messages[0].nothing.at_all }}", "{{ messages + 1 }}", "{{ 'x'.nothing() }}"]
)
def test_whatever_a_template_raises_is_an_input_error(source: str) -> None:
    with pytest.raises(InvalidInput, match="refuses them"):
        template(source).render(HELLO)


def test_a_refusal_leaves_the_template_usable() -> None:
    strict = template("{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}ok")
    with pytest.raises(InvalidInput, match="one at a time"):
        strict.render(HELLO * 2)
    assert strict.render(HELLO) == "ok"


@pytest.mark.parametrize("source", ["{% for %}", "{% nonsense %}", "{{", "{% generation %}never ended"])
def test_a_template_that_does_not_compile_is_an_unsupported_model(source: str) -> None:
    with pytest.raises(UnsupportedModel, match="chat template cannot be read"):
        template(source)


def test_the_generation_tag_of_training_templates_changes_no_text() -> None:
    source = "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}"
    assert template(source).render(HELLO * 2) == "<hola><hola>"


def test_tools_and_documents_are_none_as_hugging_face_passes_them() -> None:
    assert template("{{ tools is none and documents is none }}").render(HELLO) == "True"


def test_text_arrives_as_it_was_sent() -> None:
    text = "a\udcd0b é 😀 \x00 \u202e " + "x" * 300_000
    assert template("{{ messages[0].content }}").render([{"role": "user", "content": text}]) == text


def test_the_clock_is_the_callers() -> None:
    clocked = ChatTemplate("{{ strftime_now('%Y-%m') }}", "", "", now=lambda: datetime(2031, 5, 1, tzinfo=UTC))
    assert clocked.render(HELLO) == "2031-05"


def test_tojson_escapes_no_html() -> None:
    assert template("{{ messages|tojson }}").render(HELLO) == json.dumps(HELLO)


def children() -> set[str]:
    return {
        entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry.name) == os.getpid()
    }


def _parent(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def test_no_process_is_left_behind() -> None:
    before = children()
    closed, dropped = template("a"), template("b")
    assert len(children() - before) == 2
    closed.close()
    del dropped
    assert children() == before


def worker_of(before: set[str]) -> int:
    (made,) = children() - before
    return int(made)


def test_a_child_that_somebody_killed_costs_no_request() -> None:
    before = children()
    shown = template("{{ messages[0].content }}")
    os.kill(worker_of(before), signal.SIGKILL)
    assert shown.render(HELLO) == "hola"
    assert shown.render(HELLO) == "hola"
    shown.close()


def test_a_child_that_somebody_froze_is_given_up_and_replaced() -> None:
    before = children()
    shown = ChatTemplate("{{ messages[0].content }}", "", "", wall_limit_s=1.0)
    os.kill(worker_of(before), signal.SIGSTOP)
    with pytest.raises(EngineFault):
        shown.render([{"role": "user", "content": "x" * 300_000}])  # more than the pipe takes
    assert shown.render(HELLO) == "hola"
    shown.close()
    assert children() == before


@pytest.mark.parametrize("source", ["{{ 'é' * 60000000 }}", "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}"])
def test_a_prompt_longer_than_any_request_is_refused_in_the_child(source: str) -> None:
    with pytest.raises(InvalidInput, match="more than 8388608 characters"):
        ChatTemplate(source, "", "").render(HELLO)


@pytest.mark.parametrize(
    "source", ["messages[0].content", "messages[0].content * 9000000", "messages|tojson", "'role ' ~ messages[0]"]
)
def test_a_refusal_repeats_nothing_but_the_templates_own_words(source: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        template(f"{{{{ raise_exception({source}) }}}}").render(HELLO)
    assert "hola" not in caught.value.message
    assert len(caught.value.message) < 400
