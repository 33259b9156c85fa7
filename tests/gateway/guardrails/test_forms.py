"""No form and no phrase can be made to work long: bounded, without nested repetition, linear on hostile texts."""

from __future__ import annotations

import re
import time
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from gateway.flow.values import ChatRequest, Message, Obligations
from gateway.guardrails import folding, scan, window
from gateway.guardrails.actions import actions_of
from gateway.guardrails.detectors import announced, email, form, groups, iban, orders, phone, regrouped, secrets
from gateway.guardrails.detectors.form import GROUPED, LONGEST, Form
from gateway.guardrails.phrases import OVERLAP, PHRASES
from gateway.guardrails.prompts import Prompts
from gateway.guardrails.window import CONTEXT, SLICE

FINDERS = (*scan.ANYWHERE, *scan.AMONG_DIGITS)
NUMBERED = {f"{form.category}-{number}": form for number, form in enumerate(FINDERS) if isinstance(form, Form)}
PATTERNS = (
    {name: form.pattern for name, form in NUMBERED.items()}
    | {
        name: value
        for module in (announced, email, folding, form, groups, iban, orders, phone, regrouped, scan, secrets, window)
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }
    | {f"announced-{literal}": words for literal, words, _ in announced._STARTS}
)
KIB, MIB = 1 << 10, 1 << 20
UNITS = (
    *("1234567890", "1 2 3 ", "4539 1234 ", "a@b.", "@", "eyJ", "eyJaaaa.", "-----BEGIN ", "ghp_", "AKIA", "a", "1."),
    *("-----BEGIN PRIVATE KEY-----", "ignore all ", "ignora las ", "password: ", "tel 1 ", "rut 1234567 ", "+1 "),
    *("ES91 2100 ", "ES91", "sk-aaaaaaaa", "1\u200b", "１２３４", "1gn0r3 ", " ", "\n", "http://a:b", "ABCD123456"),
    *("xoxb-1-", "act as a ", "seguridad social ", "RFC ABCD8501", "\u0301a"),
    *("<b></b>1", "<!-- -->1", "<", "DNI 1\n", "1\n", "1\t \n", "A B C ", "sk-a1\n", "a.b\n", "tarjeta 1,", "1 letra "),
    *(
        "12345678",
        "dni dni ",
        "DNI 1 ",
        "DNI N 1 ",
        "ID1 ",
        "card 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 ",
        "+1 2 3 ",
        "1.2.3.4.5.6",
        "\x1b[0m1",
        "x\x08",
        "¹",
        "\U000e0031",
        "⑩",
        "cuenta 1-2_3/4 ",
    ),
)


def repeats(tree: Any, depth: int = 0) -> list[tuple[int, int, int]]:
    """(depth, least, most) of every repetition; an optional part is none."""
    found = []
    for code, value in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inner = value
            if most > 1:
                found.append((depth, least, most))
            found += repeats(inner, depth + (most > 1))
        elif code in (codes.POSSESSIVE_REPEAT, codes.ATOMIC_GROUP):
            continue  # never given back, so that there is one way only
        elif code is codes.SUBPATTERN:
            found += repeats(value[3], depth)
        elif code is codes.BRANCH:
            found += [one for branch in value[1] for one in repeats(branch, depth)]
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            found += repeats(value[1], depth)
    return found


@pytest.mark.parametrize("name", PATTERNS)
def test_a_form_has_no_repetition_inside_a_repetition_that_could_be_cut_in_two_ways(name: str) -> None:
    nested = [one for one in repeats(parser.parse(PATTERNS[name].pattern)) if one[0] > 0 and one[1] != one[2]]
    # In these two the inner one cannot begin with what separates the turns of the outer one.
    assert not nested or name in ("_DOMAIN", "_IBAN")


def test_a_phrase_repeats_whole_words_only_and_seldom() -> None:
    for known in PHRASES:
        inner = [most for depth, _, most in repeats(parser.parse(known.pattern.pattern)) if depth > 0]
        assert all(most <= 20 for most in inner)
        assert parser.parse(known.pattern.pattern).getwidth()[1] <= OVERLAP


@pytest.mark.parametrize("name", NUMBERED)
def test_no_span_is_longer_than_the_window_expects(name: str) -> None:
    form = NUMBERED[name]
    most = parser.parse(form.pattern.pattern).getwidth()[1]
    assert most <= LONGEST
    if form.detector in ("ids", "payment", "contact"):
        assert most <= (CONTEXT if form.group else GROUPED)


def measure(text: str) -> float:
    actions = actions_of(Obligations(redaction="block", guardrails="strict"))
    assert actions is not None
    started = time.thread_time()
    Prompts(actions, lambda: None).inspect(ChatRequest("mini", (Message.of_text("user", text),)))
    return time.thread_time() - started


@pytest.mark.parametrize("unit", UNITS)
def test_four_times_the_text_takes_about_four_times_as_long(unit: str) -> None:
    short, long = (unit * (size // len(unit)) for size in (32 * KIB, 128 * KIB))
    least = min(measure(short) for _ in range(2))
    # A square would be sixteen times as long; a machine that is busy otherwise is asked again.
    assert any(measure(long) < 10 * max(0.02, least) for _ in range(3))


def test_a_hostile_mebibyte_takes_seconds_and_not_minutes() -> None:
    text = "".join(unit * (MIB // len(UNITS) // len(unit) + 1) for unit in UNITS)
    assert len(text) > MIB
    assert measure(text) < 10


def test_the_work_can_be_stopped_between_two_slices() -> None:
    stops = 0

    def check_deadline() -> None:
        nonlocal stops
        stops += 1

    actions = actions_of(Obligations(redaction="redact"))
    assert actions is not None
    Prompts(actions, check_deadline).inspect(ChatRequest("mini", (Message.of_text("user", "palabra 12 " * 20_000),)))
    assert stops >= 2 * 220_000 // SLICE


def test_an_everyday_prompt_takes_a_few_milliseconds() -> None:
    sentence = "El comité revisó el informe trimestral de riesgos y pidió ampliar el análisis de la cartera en 2025. "
    text = (sentence * 50)[:4096]
    assert min(measure(text) for _ in range(20)) < 0.02
