"""The ways in which a number, an address or a key is written, for the matrix of `benchmarks.redaction`. Pure.

Each writing gives what stands before the value, the value as written, and what stands behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

Written = tuple[str, str, str]
Way = Callable[[str], Written]

NUMBERS = {
    "es_nif": ("DNI", "36796476H"),
    "es_nie": ("NIE", "X9721916T"),
    "es_cif": ("CIF", "B40895898"),
    "es_nss": ("NAF", "28/83954039/91"),
    "iban": ("IBAN", "ES7165844398656535856010"),
    "card": ("tarjeta", "4533 1229 6016 4788"),
    "mx_curp": ("CURP", "GOMA850101MDFRRN26"),
    "mx_rfc": ("RFC", "GOMA8501014Z0"),
    "mx_clabe": ("CLABE", "032180000118359719"),
    "br_cpf": ("CPF", "647.244.145-61"),
    "br_cnpj": ("CNPJ", "48.568.096/0001-15"),
    "cl_rut": ("RUT", "17.956.976-0"),
    "co_nit": ("NIT", "900.883.211-0"),
    "co_cedula": ("cédula", "79.456.123"),
    "ar_cuit": ("CUIT", "20-69214692-2"),
    "ar_dni": ("DNI", "30.123.456"),
    "pe_dni": ("DNI", "45678912"),
    "pe_ruc": ("RUC", "20826245744"),
    "ec_cedula": ("cédula", "1708805369"),
    "uy_cedula": ("cédula", "8.290.453-3"),
    "ve_rif": ("RIF", "J-12126101-3"),
    "phone": ("teléfono", "+34 612 345 789"),
}
OTHERS = {
    "email": ("correo", "ana.lopez@example.com"),
    "openai_key": ("clave", "sk-" + "proj-aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5"),
    "aws_key": ("clave", "AK" + "IA" + "QX7RT2WLSV5MKD3H"),
}
"""The word that announces each, and a value that checks out. Invented."""
WITHOUT_CHECK = frozenset({"co_cedula", "ar_dni", "pe_dni", "ec_cedula", "phone"})
"""Not to be found without their word: no check digit, or ten bare digits that one in ten random ones would pass."""


@dataclass(frozen=True, slots=True)
class Writing:
    name: str
    way: Way
    all_kinds: bool = False
    """It makes sense for addresses and keys too."""


def _as(form: Callable[[str], str]) -> Way:
    return lambda value: ("", form(value), "")


def _around(before: str, after: str) -> Way:
    return lambda value: (before, value, after)


def _inside(signs: str) -> Way:
    return _as(lambda value: value[: len(value) // 2] + signs + value[len(value) // 2 :])


def _digits(first: int, zero: str | None = None) -> Way:
    """Digits from `first` on; with `zero`, the row begins with one and zero is apart."""

    def form(value: str) -> str:
        row = [chr(first + n) for n in range(10)] if zero is None else [zero, *(chr(first + n) for n in range(9))]
        return "".join([row[int(sign)] if sign in "0123456789" else sign for sign in value])

    return _as(form)


def _bare(value: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", value)


def _by(size: int, between: str) -> Way:
    return _as(lambda value: between.join(re.findall(f".{{1,{size}}}", _bare(value))))


def _before_last(signs: str) -> Way:
    return _as(lambda value: value[:-1].rstrip("-") + signs + value[-1])


_CYRILLIC = str.maketrans("ABCEHKMOPTXYaceopxy", "АВСЕНКМОРТХУасеорху")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_IDEOGRAPHS = str.maketrans("0123456789", "〇一二三四五六七八九")

PLAIN = (
    Writing("as it is", _as(str), all_kinds=True),
    Writing("without separators", _as(_bare)),
    Writing("lower case", _as(str.lower)),
    Writing("groups of 3, blanks", _by(3, " ")),
    Writing("groups of 4, blanks", _by(4, " ")),
    Writing("groups of 4, dashes", _by(4, "-")),
    Writing("groups of 3, dots", _by(3, ".")),
    Writing("groups of 4, underscores", _by(4, "_")),
    Writing("groups of 4, slashes", _by(4, "/")),
    Writing("every sign apart", _by(1, " ")),
    Writing("every sign dashed", _by(1, "-")),
    Writing("blank before the last", _before_last(" ")),
    Writing("` - ` before the last", _before_last(" - ")),
    Writing("comma before the last", _before_last(",")),
    Writing("table cell before the last", _before_last(" | ")),
    Writing("line break inside", _inside("\n"), all_kinds=True),
    Writing("CR LF inside", _inside("\r\n"), all_kinds=True),
    Writing("tab inside", _inside("\t"), all_kinds=True),
    Writing("two blanks inside", _inside("  "), all_kinds=True),
    Writing("line break and indent", _inside("\n    ")),
    Writing("quoted line break inside", _inside("\n> ")),
    Writing("line break in a comment", _inside("\n    // ")),
    Writing("`ref:` before", _around("ref:", ""), all_kinds=True),
    Writing("`#` before", _around("#", ""), all_kinds=True),
    Writing("`DNI` against it", _around("DNI", "")),
    Writing("letters behind it", _around("", "abc")),
    Writing("`_v2` behind it", _around("", "_v2")),
    Writing("full stop behind", _around("", "."), all_kinds=True),
    Writing("in quotes", _around('"', '"'), all_kinds=True),
    Writing("in brackets", _around("[", "]"), all_kinds=True),
    Writing("in a tag", _around("<id>", "</id>"), all_kinds=True),
    Writing("file name", _around("contrato_", ".pdf"), all_kinds=True),
    Writing("path of a URL", _around("/c/", "/ficha"), all_kinds=True),
    Writing("query of a URL", _around("?id=", "&a=1"), all_kinds=True),
    Writing("JSON in JSON", lambda value: ('{\\"v\\": \\"', json.dumps(value)[1:-1], '\\"}'), all_kinds=True),
    Writing("CSV, each neighbor a number", _around("12,", ",33"), all_kinds=True),
    Writing("CSV with dates and amounts", _around("2026-01-02,100.50,", ",1980-03-12"), all_kinds=True),
    Writing("CSV with `;`, each neighbor a number", _around("12;", ";33"), all_kinds=True),
    Writing("CSV with tabs, each neighbor a number", _around("12\t", "\t33"), all_kinds=True),
    Writing("CSV, quoted, each neighbor a number", _around('"12","', '","33"'), all_kinds=True),
    Writing("SQL", _around("VALUES('", "');"), all_kinds=True),
)
MARKUP = (
    Writing("bold inside", _inside("**")),
    Writing("tag inside", _inside("<b></b>")),
    Writing("comment inside", _inside("<!-- -->")),
    Writing("backslash inside", _inside("\\")),
    Writing("backtick inside", _inside("`")),
    Writing("underscore inside", _inside("_")),
    Writing("apostrophe inside", _inside("'")),
    Writing("asterisk inside", _inside("*")),
    Writing("bar inside", _inside("|")),
    Writing("joined strings", _inside('" + "')),
    Writing("terminal color inside", _inside("\x1b[0m"), all_kinds=True),
    Writing("deleted sign inside", _inside("x\x08"), all_kinds=True),
)
UNSEEN = tuple(
    Writing(f"U+{ord(sign):04X} inside", _inside(sign), all_kinds=True)
    for sign in "\x00\x01\x7f\u00ad\u0301\u034f\u061c\u17b4\u180e\u200b\u200c\u2060\u2800\u3164\ue000\ue0d0"
    "\ufdd0\ufe0f\ufeff\ufff9\ufffd\U0001bca0\U0001d173\U000e0041"
)
BLANKS = tuple(
    Writing(f"U+{ord(sign):04X} inside", _inside(sign)) for sign in "\x0b\x0c\x85\u00a0\u2028\u2029\u202f\u3000"
)
DASHES = tuple(
    Writing(f"U+{ord(sign):04X} inside", _inside(sign)) for sign in "\u058a\u2010\u2013\u2043\u2053\u2212\u30fc\uff0d"
)
DIGITS = (
    Writing("full width", _as(lambda value: "".join([chr(ord(s) + 0xFEE0) if "!" <= s <= "~" else s for s in value]))),
    Writing("Arabic", _digits(0x660)),
    Writing("Devanagari", _digits(0x966)),
    Writing("Chakma", _digits(0x11136)),
    Writing("Brahmi", _digits(0x11066)),
    Writing("Osmanya", _digits(0x104A0)),
    Writing("Adlam", _digits(0x1E950)),
    Writing("Ethiopic", _digits(0x1369, "0")),
    Writing("mathematical bold", _digits(0x1D7CE)),
    Writing("segmented", _digits(0x1FBF0)),
    Writing("superscript", _as(lambda value: value.translate(_SUPERSCRIPT))),
    Writing("subscript", _digits(0x2080)),
    Writing("circled", _digits(0x2460, "⓪")),
    Writing("in brackets `⑴`", _digits(0x2474, "0")),
    Writing("with full stop `⒈`", _digits(0x2488, "0")),
    Writing("keycaps", _as(lambda value: "".join([s + "\ufe0f\u20e3" if s.isdigit() else s for s in value]))),
    Writing("ideographs", _as(lambda value: value.translate(_IDEOGRAPHS))),
    Writing("Cyrillic look-alikes", _as(lambda value: value.translate(_CYRILLIC)), all_kinds=True),
)
SECTIONS = {
    "Plain writing": PLAIN,
    "Markup": MARKUP,
    "Unseen signs": UNSEEN,
    "Blanks and line breaks": BLANKS,
    "Dashes": DASHES,
    "Digits and letters": DIGITS,
}
