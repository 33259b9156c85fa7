"""Check digits, against python-stdnum on random numbers of the right form and against published examples."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from functools import partial

import pytest

from gateway.guardrails.detectors import checksums

LETTERS, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
ORACLES: dict[str, tuple[Callable[[str], bool], str, tuple[str, ...]]] = {
    "nif": (checksums.nif, "es.dni", ("99999999?",)),
    "nie": (checksums.nie, "es.nie", ("X9999999?", "Y9999999?", "Z9999999?")),
    "cif": (checksums.cif, "es.cif", ("B9999999*", "A9999999*", "G9999999*", "Q9999999*", "N9999999*", "W9999999*")),
    "cpf": (checksums.cpf, "br.cpf", ("99999999999",)),
    "cnpj": (checksums.cnpj, "br.cnpj", ("99999999999999", "?9?9??99?99999")),
    "curp": (checksums.curp, "mx.curp", ("GOMA850101MDFRRN99", "PEHJ990214HJCRRSA9")),
    "rfc": (checksums.rfc, "mx.rfc", ("GOMA8501012?9", "ABC101231A?9", "ABC101231A?A")),
    "rut": (checksums.rut, "cl.rut", ("99999999+", "9999999+")),
    "cuit": (checksums.cuit, "ar.cuit", ("20999999999", "27999999999", "30999999999")),
    "nit": (checksums.nit, "co.nit", ("9999999999",)),
    "ec_cedula": (checksums.ec_cedula, "ec.ci", ("9999999999", "1799999999")),
    "ec_ruc": (checksums.ec_ruc, "ec.ruc", ("1799999999001", "1769999990001", "1799999999001")),
    "pe_ruc": (checksums.pe_ruc, "pe.ruc", ("20999999999", "10999999999")),
    "pe_dni": (checksums.pe_dni, "pe.cui", ("999999999", "99999999?")),
    "ve_rif": (checksums.ve_rif, "ve.rif", ("V999999999", "J999999999", "G999999999")),
    "luhn": (checksums.luhn, "luhn", ("9999999999999999", "999999999999999")),
}


def draw(form: str, chance: random.Random) -> str:
    pools = {"9": DIGITS, "?": LETTERS, "*": DIGITS + "ABCDEFGHIJ", "+": DIGITS + "K"}
    return "".join(chance.choice(pools.get(sign, sign)) for sign in form)


@pytest.mark.parametrize("name", ORACLES)
def test_it_agrees_with_the_oracle(name: str) -> None:
    check, module, forms = ORACLES[name]
    options = {"validate_check_digits": True} if name == "rfc" else {}
    valid = partial(importlib.import_module(f"stdnum.{module}").is_valid, **options)
    chance, agreed = random.Random(name), 0
    for number in range(4000):
        text = draw(forms[number % len(forms)], chance)
        assert check(text) is valid(text), text
        agreed += check(text)
    assert agreed > 0


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checksums.mod_97, "ES91 2100 0418 4502 0005 1332", "ES91 2100 0418 4502 0005 1333"),
        (checksums.mod_97, "GB29 NWBK 6016 1331 9268 19", "GB29 NWBK 6016 1331 9268 91"),
        (checksums.mod_97, "DO28BAGR00000001212453611324", "DO28BAGR00000001212453611342"),
        (checksums.clabe, "032180000118359719", "032180000118359718"),
        (checksums.clabe, "002 010 07777777777 1", "002 010 07777777777 2"),
        (checksums.luhn, "4111 1111 1111 1111", "4111 1111 1111 1112"),
        (checksums.nif, "12.345.678-Z", "12.345.678-A"),
        (checksums.nie, "X-1234567-L", "X-1234567-M"),
        (checksums.social_security, "28/12345678/40", "28/12345678/41"),
        (checksums.uy_cedula, "1.234.567-2", "1.234.567-3"),
        (checksums.cnpj, "12.ABC.345/01DE-35", "12.ABC.345/01DE-53"),
        (checksums.rut, "30.686.957-4", "30.686.957-K"),
    ],
)
def test_a_published_example_holds_and_a_changed_one_does_not(
    check: Callable[[str], bool], good: str, bad: str
) -> None:
    assert check(good)
    assert not check(bad)
