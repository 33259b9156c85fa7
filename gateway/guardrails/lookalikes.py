"""Confusable characters folded to plain ASCII; invisible ones to nothing. Pure.

Maps at least as much as the normalizers of the tokenizers do (NFC, NFKC, NMT, BERT's), so that no model reads a number
that inspection did not.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_UNSEEN_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800\ufffd\ufffc\u1cf2\u1cf3")
"""Fillers and blanks that Unicode counts among letters and symbols."""
_DASHES = "\u2043\u2053\u2212\u02d7\u2796\u30fc\uff70\u2500\u2501\u2574\u2576\u2e17\u207b\u208b\u00af\u203e\u2048\u23af"
_DOTS = "\u00b7\u2022\u2024\u2027\u2219\u22c5\u3002\u30fb\uff65\u06d4\u0387"
_SLASHES = "\u2044\u2215\u2571\u29f8"
_LATIN = {
    # Cyrillic
    **dict(zip("АВЕЅІЈКМНОРСТУХҮԚԜЗаеѕіјорсухԁԛԝһԏ", "ABESIJKMHOPCTYXYQW3aesijopcyxdqwhg", strict=True)),
    # Greek
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳοανικρυϲ", "ABEZHIKMNOPTYXCjoavikpuc", strict=True)),
    # Armenian, Cherokee, Lisu, Coptic and Latin's own
    **dict(zip("ՕՍՏօսհոցզ", "OUSouhngq", strict=True)),
    **dict(zip("ᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᏒᏚᎢᏙᏔᎩᏃ", "ABCDEHJKLMPRSTVWYZ", strict=True)),
    **dict(zip("ꓐꓚꓓꓰꓝꓖꓧꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ", "BCDEFGHJKLMNOPRSTUVWXYZ", strict=True)),
    **dict(zip("ⲀⲂⲈⲎⲒⲔⲘⲚⲞⲢⲤⲦⲨⲬ", "ABEHIKMNOPCTYX", strict=True)),
    **dict(zip("ıɡɑɩℓƖǀ", "igailll", strict=True)),
}
"""Letters that look like a Latin one (Unicode's confusables, for the letters of numbers, addresses and keys)."""
_NUMERALS = dict(zip("〇一二三四五六七八九", "0123456789", strict=True))
_EXPLICIT = {
    **dict.fromkeys(_UNSEEN_LETTERS, ""),
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_DOTS, "."),
    **dict.fromkeys(_SLASHES, "/"),
    **_LATIN,
    **_NUMERALS,
    **dict.fromkeys("\t\n\r\u00aa\u00ba"),
    **dict.fromkeys("\x0b\x0c\x85\u2028\u2029", "\n"),
}
_LETTERS_IN_FRAMES = (0x1F150, 0x1F170, 0x1F1E6)
"""Where twenty-six letters in black circles, in black squares and of flags begin."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me"})
"""Controls, formats, private use, unassigned, and marks over the sign before them."""
_BREAKS = {"Zs": " ", "Zl": "\n", "Zp": "\n", "Pd": "-"}


@lru_cache(maxsize=1 << 16)
def plain_form(sign: str) -> str:
    """`sign` as it is read: itself, ASCII, several signs (`⑩` is `10`) or none."""
    given = _EXPLICIT.get(sign, sign)
    if given != sign:
        return sign if given is None else given
    if " " <= sign <= "~":
        return sign
    category = unicodedata.category(sign)
    if category in _UNSEEN:
        return ""
    digit = unicodedata.digit(sign, None)
    if digit is not None:
        return str(digit)
    if category in _BREAKS:
        return _BREAKS[category]
    for start in _LETTERS_IN_FRAMES:
        if start <= ord(sign) < start + 26:
            return chr(ord(sign) - start + 65)
    compatible = unicodedata.normalize("NFKC", sign)
    if compatible != sign:
        return "".join([plain_form(part) for part in compatible])
    return _without_mark(sign) if sign > "\xff" else sign


def _without_mark(letter: str) -> str:
    """`Ź` as `Z`. Western European letters keep their marks: they are how Spanish and Portuguese are written."""
    base = unicodedata.normalize("NFD", letter)[0]
    return base if base.isascii() else letter
