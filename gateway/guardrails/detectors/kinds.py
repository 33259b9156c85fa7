"""The numbers of persons, companies and accounts in bare form, each with its arithmetic. Pure.

A bare form has no separators and upper-case letters: what is written in groups is joined first (`groups`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.guardrails.detectors import checksums
from gateway.guardrails.detectors.cards import is_card
from gateway.guardrails.detectors.form import anything
from gateway.guardrails.detectors.iban import is_iban


@dataclass(frozen=True, slots=True)
class Kind:
    category: str
    detector: str
    shape: re.Pattern[str]
    check: Callable[[str], bool] = anything
    lengths: range = range(0)

    def holds(self, bare: str) -> bool:
        return len(bare) in self.lengths and self.shape.fullmatch(bare) is not None and self.check(bare)


def _kind(
    category: str, shape: str, check: Callable[[str], bool], least: int, most: int = 0, *, detector: str = "ids"
) -> Kind:
    return Kind(category, detector, re.compile(shape), check, range(least, (most or least) + 1))


def rfc(bare: str) -> bool:
    """A date of birth or foundation inside, and the check digit."""
    month, day = int(bare[-7:-5]), int(bare[-5:-3])
    return 1 <= month <= 12 and 1 <= day <= 31 and checksums.rfc(bare)


def curp(bare: str) -> bool:
    month, day = int(bare[6:8]), int(bare[8:10])
    return 1 <= month <= 12 and 1 <= day <= 31 and checksums.curp(bare)


def _dominican(bare: str) -> bool:
    return checksums.luhn(bare) and len(set(bare)) > 1


def _varied(bare: str) -> bool:
    """Not a row of one digit, as examples have."""
    return len(set(bare)) > 2


_BANKS_OF_MEXICO = (
    "002 006 009 012 014 019 021 022 030 032 036 037 042 044 058 059 060 062 072 106 108 110 112 113 116 "
    "124 126 127 128 129 130 131 132 133 135 136 137 138 139 140 141 143 145 147 148 150 151 152 154 155 "
    "156 157 158 159 160 166 167 168 600 601 602 605 606 607 608 610 613 614 615 616 617 618 619 620 621 "
    "622 623 626 627 628 629 630 631 632 633 634 636 637 638 640 642 646 647 648 649 651 652 653 655 656 "
    "659 661 670 677 680 683 684 685 686 688 689 699 703 706 710 714 715 717 718 720 721 722 723 725 727 "
    "728 729 730 732 734 738 741 812 901 902"
)
_MEXICAN_BANKS = frozenset(_BANKS_OF_MEXICO.split())


def _clabe(bare: str) -> bool:
    """A bank that exists, and the check digit."""
    return bare[:3] in _MEXICAN_BANKS and checksums.clabe(bare)


NIF = _kind("es_nif", "(?:[0-9]{8}|[KLM][0-9]{7})[A-Z]", checksums.nif, 9)
NIE = _kind("es_nie", "[XYZ][0-9]{7}[A-Z]", checksums.nie, 9)
CIF = _kind("es_cif", "[A-HJNP-SU-W][0-9]{7}[0-9A-J]", checksums.cif, 9)
NSS = _kind("es_nss", "[0-9]{12}", checksums.social_security, 12)
CPF = _kind("br_cpf", "[0-9]{11}", checksums.cpf, 11)
CNPJ = _kind("br_cnpj", "[0-9A-Z]{12}[0-9]{2}", checksums.cnpj, 14)
CURP = _kind("mx_curp", "[A-Z]{4}[0-9]{6}[HMX][A-Z]{5}[0-9A-Z][0-9]", curp, 18)
RFC = _kind("mx_rfc", "[A-ZÑ&]{3,4}[0-9]{6}[1-9A-V][1-9A-Z][0-9A]", rfc, 12, 13)
CLABE = _kind("mx_clabe", "[0-9]{18}", _clabe, 18, detector="payment")
RUT = _kind("cl_rut", "[0-9]{7,8}[0-9K]", checksums.rut, 8, 9)
CUIT = _kind("ar_cuit", "(?:2[0-7]|3[034])[0-9]{9}", checksums.cuit, 11)
NIT = _kind("co_nit", "[0-9]{9,10}", checksums.nit, 9, 10)
EC_CEDULA = _kind("ec_cedula", "[0-9]{10}", checksums.ec_cedula, 10)
EC_RUC = _kind("ec_ruc", "[0-9]{13}", checksums.ec_ruc, 13)
PE_RUC = _kind("pe_ruc", "(?:1[0-7]|20)[0-9]{9}", checksums.pe_ruc, 11)
PE_DNI_CHECKED = _kind("pe_dni", "[0-9]{8}[0-9A-K]", checksums.pe_dni, 9)
UY_CEDULA = _kind("uy_cedula", "[0-9]{8}", checksums.uy_cedula, 8)
VE_RIF = _kind("ve_rif", "[VEJPG][0-9]{9}", checksums.ve_rif, 10)
DO_CEDULA = _kind("do_cedula", "[0-9]{11}", _dominican, 11)
CARD = _kind("card", "[2-6][0-9]{13,15}", is_card, 14, 16, detector="payment")
IBAN = _kind("iban", "[A-Z]{2}[0-9]{2}[0-9A-Z]{11,30}", is_iban, 15, 34, detector="payment")
# Without a check digit: only behind the word that says what they are.
CO_CEDULA = _kind("co_cedula", "[1-9][0-9]{5,9}", _varied, 6, 10)
AR_DNI = _kind("ar_dni", "[1-9][0-9]{6,7}", _varied, 7, 8)
PE_DNI = _kind("pe_dni", "[0-9]{8}", _varied, 8)
