"""Identity and tax numbers of Latin America, as they are written, each with its check digits.

Dots and dashes in the right places prove a number as much as its check digit does. A bare run of digits with one check
digit is right by chance once in ten: it is certain only behind a word that announces it (`announced`), and otherwise
only looks like one, or is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.guardrails.detectors import checksums, kinds
from gateway.guardrails.detectors.form import form, weak

NAME = "ids"


def _bare(check: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: check(checksums.bare(text))


LATIN_AMERICA = (
    form("br_cpf", NAME, "d3", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}[-/]\n?[0-9]{2}", checksums.cpf),
    form(
        "br_cnpj", NAME, "d2 d1 a1 a2", r"[0-9A-Z]{2}\.[0-9A-Z]{3}\.[0-9A-Z]{3}/[0-9A-Z]{4}-\n?[0-9]{2}", checksums.cnpj
    ),
    form("mx_curp", NAME, "a4", "[A-Za-z]{4}[0-9]{6}[HMXhmx][A-Za-z]{5}[0-9A-Za-z][0-9]", _bare(kinds.curp)),
    form("mx_rfc", NAME, "a1 a2 a3 a4", "[A-ZÑ&]{3,4}-?[0-9]{6}-?[1-9A-V][1-9A-Z][0-9A]", _bare(kinds.rfc)),
    form("mx_rfc", NAME, "a1 a2 a3 a4", "[a-zñ]{3,4}[0-9]{6}[1-9a-v][1-9a-z][0-9a]", _bare(kinds.rfc), certain=False),
    form("mx_clabe", kinds.CLABE.detector, "d18", "[0-9]{18}", kinds.CLABE.check, certain=False),
    form("cl_rut", NAME, "d1 d2", r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}-\n?[0-9Kk]", checksums.rut),
    weak("cl_rut", NAME, "d7 d8", "[0-9]{7,8}-[0-9Kk]", checksums.rut),
    form("ar_cuit", NAME, "d2", r"(?:2[0-7]|3[034])-\n?[0-9]{8}-\n?[0-9]", checksums.cuit),
    form("co_nit", NAME, "d3", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-\n?[0-9]", checksums.nit),
    weak("co_nit", NAME, "d9", "[89][0-9]{8}-[0-9]", checksums.nit),
    form("ec_ruc", NAME, "d13", "[0-9]{10}001", checksums.ec_ruc),
    weak("pe_ruc", NAME, "d11", "(?:1[0-7]|20)[0-9]{9}", checksums.pe_ruc),
    form("uy_cedula", NAME, "d1", r"[0-9]\.[0-9]{3}\.[0-9]{3}-\n?[0-9]", checksums.uy_cedula),
    form("ve_rif", NAME, "a1", "[VEJPG]-[0-9]{8}-?[0-9]", checksums.ve_rif),
    form("do_cedula", NAME, "d3", r"[0-9]{3}-\n?[0-9]{7}-\n?[0-9]", kinds.DO_CEDULA.check),
)
