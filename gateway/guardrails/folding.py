"""The same text as a detector reads it: look-alike signs made plain. Pure.

`folded` keeps every sign in its place, for finding spans; `plain_words` does not, for finding phrases.
"""

from __future__ import annotations

import re
import unicodedata


def _between(*bounds: int) -> str:
    """All signs from the first to the second, from the third to the fourth, and so on."""
    return "".join(
        chr(code) for low, high in zip(bounds[::2], bounds[1::2], strict=True) for code in range(low, high + 1)
    )


_SELECTORS = _between(0x180B, 0x180F, 0xFE00, 0xFE0F, 0xE0000, 0xE007F, 0xE0100, 0xE01EF)
_MARKS = _between(0x0300, 0x036F, 0x1AB0, 0x1ACE, 0x1DC0, 0x1DFF, 0x20D0, 0x20F0, 0xFE20, 0xFE2F)
"""Strokes, dots and frames over the sign before them; also the accents of a text that writes them apart."""
INVISIBLE = (
    "\u00ad\u061c\u115f\u1160\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    f"\u3164\ufeff\uffa0{_between(0x2060, 0x206F)}{_SELECTORS}{_MARKS}"
)
_UNSEEN = frozenset(INVISIBLE)
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_ZEROS = (
    *(0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66, 0x0DE6),
    *(0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0),
    *(0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0),
    *(0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1FBF0),
)
"""Where ten digits of another script or face begin; the last six are for mathematics and old screens."""
_ONES = (0x2460, 0x2474, 0x24F5, 0x2776, 0x2780, 0x278A)
"""Where digits in circles and brackets begin."""
_FOLD = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    **{ord(sign): "-" for sign in _DASHES},
    **{ord(sign): " " for sign in _SPACES},
    **{zero + digit: str(digit) for zero in _ZEROS for digit in range(10)},
    **{one + digit: str(digit + 1) for one in _ONES for digit in range(9)},
    **{code: unicodedata.normalize("NFKC", chr(code)) for code in range(0x1D400, 0x1D6A4)},
    0x24EA: "0",
}
_FOLDED_LATIN_1 = frozenset(b"\xa0\xad")
_ESCAPES = re.compile(r"\\[nrt]")
_HIDDEN = re.compile(f"[{INVISIBLE}]")
_ACCENTS = {
    **dict.fromkeys(INVISIBLE, ""),
    **dict.fromkeys("¡¿«»“”‘’…·—–", " "),
    **dict(zip("áéíóúüñàèìòùâêîôûãõçäëïö", "aeiouunaeiouaeiouaocaeio", strict=True)),
}
"""The common case at once; what is left goes through Unicode's own tables."""
_LATIN = str.maketrans("абвеіјкмнорсѕтухԁԛԝνοαι", "abbeijkmhopcstyxdqwvoai")
"""Cyrillic and Greek letters that look like Latin ones, for words that are otherwise Latin."""
_MIXED = re.compile("[a-z][а-яіјѕԁԛԝα-ω]|[а-яіјѕԁԛԝα-ω][a-z]")
_LEET = str.maketrans("013457@$", "oieastas")
_DISGUISES = re.compile("[013457@$]+")
_GAPS = re.compile(r"[^\w@$]+")


def folded(text: str) -> tuple[str, list[int] | None]:
    """Same signs in plain form, and for each the place in `text` it came from (None: the places are the same).

    Wide and foreign digits become ASCII, dashes `-`, fixed spaces and line breaks of JSON blanks; what cannot be seen
    is left out.
    """
    if "\\" in text:
        text = _ESCAPES.sub("  ", text)
    if text.isascii() or _nothing_to_fold(text):
        return text, None
    plain = text.translate(_FOLD)
    if _HIDDEN.search(plain) is None:
        return plain, None
    places = [place for place, sign in enumerate(plain) if sign not in _UNSEEN]
    return "".join([plain[place] for place in places]), places


def _nothing_to_fold(text: str) -> bool:
    """Western European letters: the usual case, told at the price of a copy."""
    try:
        return not _FOLDED_LATIN_1.intersection(text.encode("latin-1"))
    except UnicodeEncodeError:
        return False


def lowered(text: str) -> str:
    """In lower case, sign by sign: `İ`, whose lower case is two signs, stays as it is."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join([s if len(s.lower()) > 1 else s.lower() for s in text])


def plain_words(text: str) -> str:
    """Lower-case words with single spaces: NFKC, no accents, no invisible signs, no punctuation, no markup."""
    text = text.lower()
    if not text.isascii():
        for sign in _ACCENTS.keys() & set(text):
            text = text.replace(sign, _ACCENTS[sign])
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join([sign for sign in unicodedata.normalize("NFD", text) if not unicodedata.combining(sign)])
        text = text.casefold()
        text = text.translate(_LATIN) if _MIXED.search(text) else text
    return _GAPS.sub(" ", text.replace("_", " "))


def undisguised(words: str) -> str | None:
    """`1gn0r3` read as `ignore`; None where no such digit touches a letter."""
    for found in _DISGUISES.finditer(words):
        start, end = found.span()
        if words[start - 1 : start].isalpha() or words[end : end + 1].isalpha():
            return words.translate(_LEET)
    return None
