"""Identity and tax numbers of persons and companies in Spain and Latin America, each with its check digits.

A form that hardly occurs by accident (dots and a dash in the right places, letters where they belong) is certain. A
bare run of digits with one check digit is right by chance once in ten: it is certain only behind a word that announces
it (`RUT`, `cédula`), and otherwise only looks like one, or is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.guardrails import checksums
from gateway.guardrails.detector import Form

NAME = "ids"
GAP = r"[^0-9\n]{0,32}"
"""Between an announcing word and its number: `RUT del arrendatario: `."""


def _form(category: str, pattern: str, check: Callable[[str], bool], *, certain: bool = True) -> Form:
    return Form(category, NAME, re.compile(rf"(?<![\w.\-/]){pattern}(?![\w/]|[.\-]\w)"), check, certain=certain)


def _announced(category: str, words: str, number: str, check: Callable[[str], bool]) -> Form:
    pattern = re.compile(rf"(?i)\b(?:{words})(?!\w){GAP}(?<![\w.\-])({number})(?![\w/]|[.\-]\w)")
    starts = tuple(re.sub(r"\\|\?", "", word).rstrip(".") for word in words.split("|"))
    return Form(category, NAME, pattern, check, starts, group=1)


def _rfc(text: str) -> bool:
    """A date of birth or foundation inside, and the check digit."""
    number = checksums.bare(text)
    month, day = int(number[-7:-5]), int(number[-5:-3])
    return 1 <= month <= 12 and 1 <= day <= 31 and checksums.rfc(number)


def _dominican(text: str) -> bool:
    return checksums.luhn(text) and len(set(checksums.bare(text))) > 1


SPAIN = (
    _form("es_nif", r"(?:[0-9]{8}|[0-9]{1,2}\.[0-9]{3}\.[0-9]{3})(?:-?[A-Za-z]| [A-Z])", checksums.nif),
    _form("es_nif", r"[KLMklm]-?[0-9]{7}-?[A-Za-z]", checksums.nif),
    _form("es_nie", r"[XYZxyz]-?(?:[0-9]{7}|[0-9]\.[0-9]{3}\.[0-9]{3})-?[A-Za-z]", checksums.nie),
    _form("es_cif", r"[A-HJNP-SU-W]-(?:[0-9]{7}|[0-9]{2}\.[0-9]{3}\.[0-9]{2})-?[0-9A-J]", checksums.cif),
    _form("es_cif", r"[A-HJNP-SU-W][0-9]{7}[0-9A-J]", checksums.cif, certain=False),
    _form("es_nss", r"[0-9]{2}/[0-9]{8}/[0-9]{2}", checksums.social_security),
)
LATIN_AMERICA = (
    _form("br_cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", checksums.cpf),
    _form("br_cnpj", r"[0-9A-Z]{2}\.[0-9A-Z]{3}\.[0-9A-Z]{3}/[0-9A-Z]{4}-[0-9]{2}", checksums.cnpj),
    _form("mx_curp", "[A-Z]{4}[0-9]{6}[HMX][A-Z]{5}[0-9A-Z][0-9]", checksums.curp),
    _form("mx_rfc", "[A-ZÑ&]{3,4}-?[0-9]{6}-?[1-9A-V][1-9A-Z][0-9A]", _rfc),
    _form("cl_rut", r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}-[0-9Kk]", checksums.rut),
    _form("cl_rut", "[0-9]{7,8}-[0-9Kk]", checksums.rut, certain=False),
    _form("ar_cuit", "(?:2[0-7]|3[034])-[0-9]{8}-[0-9]", checksums.cuit),
    _form("co_nit", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]", checksums.nit),
    _form("co_nit", "[89][0-9]{8}-[0-9]", checksums.nit, certain=False),
    _form("ec_ruc", "[0-9]{10}001", checksums.ec_ruc),
    _form("pe_ruc", "(?:1[0-7]|20)[0-9]{9}", checksums.pe_ruc, certain=False),
    _form("uy_cedula", r"[0-9]\.[0-9]{3}\.[0-9]{3}-[0-9]", checksums.uy_cedula),
    _form("ve_rif", "[VEJPG]-[0-9]{8}-?[0-9]", checksums.ve_rif),
    _form("do_cedula", "[0-9]{3}-[0-9]{7}-[0-9]", _dominican),
)
ANNOUNCED = (
    _announced("es_cif", r"cif|nif|vat|c\.i\.f\.?|n\.i\.f\.?", "[A-HJNP-SU-W]-?[0-9]{7}-?[0-9A-J]", checksums.cif),
    _announced("es_nss", "nss|naf|seguridad social|afiliación|afiliacion", "[0-9]{12}", checksums.social_security),
    _announced("br_cpf", "cpf", "[0-9]{9}-?[0-9]{2}", checksums.cpf),
    _announced("br_cnpj", "cnpj", "[0-9]{8}/?[0-9]{4}-?[0-9]{2}", checksums.cnpj),
    _announced("cl_rut", "rut|run", "[0-9]{7,8}-?[0-9k]", checksums.rut),
    _announced("ar_cuit", "cuit|cuil|cdi", "(?:2[0-7]|3[034])[0-9]{9}", checksums.cuit),
    _announced("co_nit", r"nit|n\.i\.t\.?", "[0-9]{9}-?[0-9]", checksums.nit),
    _announced("ec_cedula", r"cédula|cedula|c\.i\.?|ci", "[0-9]{9}-?[0-9]", checksums.ec_cedula),
    _announced("pe_ruc", "ruc", "(?:1[0-7]|20)[0-9]{9}", checksums.pe_ruc),
    _announced("ve_rif", "rif", "[VEJPG][0-9]{9}", checksums.ve_rif),
)
"""Bare digits behind the word that says what they are."""
