"""The published matrix of writings and kinds is what the code does, and says what it misses."""

from __future__ import annotations

from benchmarks.redaction import BEGIN, END, KINDS, MISSED, PAGE, PART, counts, page, sections
from gateway.guardrails.scan import AMONG_DIGITS, ANYWHERE


def test_the_page_is_what_the_code_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == page(), "run `python -m benchmarks.redaction --write`"


def test_nothing_is_missed_and_only_last_groups_are_found_in_part() -> None:
    found = [
        (name, kind, cell)
        for _, rows in sections()
        for name, cells in rows
        for kind, cell in zip(KINDS, cells, strict=True)
    ]
    assert [(name, kind) for name, kind, cell in found if cell == MISSED] == []
    parts = {(name, kind) for name, kind, cell in found if cell == PART}
    assert all(name.endswith("before the last") for name, _ in parts)
    assert {kind for _, kind in parts} <= {"phone", "co_cedula", "ar_dni", "pe_dni"}


def test_every_unseen_sign_and_every_digit_is_read_in_every_kind() -> None:
    found = counts()
    for title in ("Unseen signs", "Digits and letters", "Blanks and line breaks", "Dashes", "Markup"):
        assert set(found[title]) <= {"found", "found_behind_its_word"}, title


def test_the_matrix_holds_every_kind_of_number() -> None:
    categories = {finder.category for finder in (*ANYWHERE, *AMONG_DIGITS) if finder.detector != "secrets"}
    # Of Ecuador and the Dominican Republic the forms with a fixed shape stand in the corpus of samples.
    assert categories - {*KINDS, "ec_ruc", "do_cedula"} == set()
