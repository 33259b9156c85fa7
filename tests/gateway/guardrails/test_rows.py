"""Rows of tables as programs export them: a neighbor that is a number hides no number, and an amount is none."""

from __future__ import annotations

import pytest

from gateway.guardrails.scan import scan
from gateway.guardrails.spans import without
from gateway.guardrails.window import Window

CARD, NIF, CPF, IBAN = "4111111111111111", "12345678Z", "529.982.247-25", "ES9121000418450200051332"
ROWS = {
    f"1,Ana,{CARD},12/27": "1,Ana,[CARD],12/27",
    f"2026-01-02,{CARD}": "2026-01-02,[CARD]",
    f"100.50,{CARD}": "100.50,[CARD]",
    f"100,50,{CARD}": "100,50,[CARD]",
    f"1,{CARD}": "1,[CARD]",
    f"0,{CARD},12/27": "0,[CARD],12/27",
    f"10:30:{CARD}:12:27": "10:30:[CARD]:12:27",
    f"{CARD},28001": "[CARD],28001",
    f"{CARD},912345678": "[CARD],912345678",
    f"{CARD}.00": "[CARD].00",
    f"{CARD},00 €": "[CARD],00 €",
    f"{CARD}-2024": "[CARD]-2024",
    "1,4111 1111 1111 1111,12/27": "1,[CARD],12/27",
    f"Ana,{NIF},612345678": "Ana,[ES_NIF],612345678",
    f"{NIF},1980-03-12": "[ES_NIF],1980-03-12",
    f"1,{NIF}.2": "1,[ES_NIF].2",
    f"{CPF},33": "[BR_CPF],33",
    f"7,{IBAN},100.5": "7,[IBAN],100.5",
    "dni: 12,30.123.456,33": "dni: 12,[AR_DNI],33",
    "cédula\t2026-01-02\t79456123\t33": "cédula\t2026-01-02\t[CO_CEDULA]\t33",
    "id,tarjeta\n1,4111111111111111\n2,5555555555554444\n": "id,tarjeta\n1,[CARD]\n2,[CARD]\n",
}
AMOUNTS = (
    f"0.{CARD}",
    f"3.{CARD}",
    f"0,{CARD}",
    f"0,{CARD}; 0,{CARD}",
    f"-0,{CARD} €",
    f"v {CPF}.7",
    "2.497647122804275",
    "0.44568687304920396",
)


@pytest.mark.parametrize("row", ROWS)
def test_a_number_is_found_among_numbers(row: str) -> None:
    assert without(row, scan(row)) == ROWS[row]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_that_arrives_sign_by_sign_hides_the_same(row: str) -> None:
    window, shown = Window(scan), ""
    for sign in row:
        done = window.advance(sign)
        shown += without(done.text, done.spans)
    done = window.advance("", last=True)
    assert shown + without(done.text, done.spans) == ROWS[row]


@pytest.mark.parametrize("text", AMOUNTS)
def test_the_decimals_of_an_amount_are_no_number(text: str) -> None:
    assert scan(text) == []


def test_what_only_resembles_a_number_in_a_list_or_a_sentence_is_left() -> None:
    for text in (
        '["4111","1111","1111","1111","1111"]',
        "5,120,240,360,480,600,720",
        "Guarde el DNI. 2026-01-02 es la fecha.",
        "Pieza 612-345-6789 y caja 0034512345678",
        "cambia la clave\nWindows11 la pedirá",
        "reunión @ empresa.es",
    ):
        assert scan(text) == [], text


def test_a_card_cut_over_two_messages_anywhere_is_one() -> None:
    for text in ("4111\n1111 1111 1111", "4111 1111\n1111 1111", "4111 1111 1111\n1111"):
        assert [(span.category, span.certain) for span in scan(text)] == [("card", True)]
    assert scan("4111 1111 1111\n1111 2222 3333") == []
