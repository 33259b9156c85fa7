"""The same text as a detector reads it: look-alike signs made plain. Pure.

`folded` keeps every sign in its place, for finding spans; `plain_words` does not, for finding phrases.
"""

from __future__ import annotations

import re
import unicodedata

INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064\ufeff"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_FOLD = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    **{ord(sign): "-" for sign in _DASHES},
    **{ord(sign): " " for sign in _SPACES},
    **{
        base + digit: str(digit)
        for base in (0x0660, 0x06F0, 0x0966, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6)
        for digit in range(10)
    },
}
_HIDDEN = re.compile(f"[{INVISIBLE}]")
_REMOVE = dict.fromkeys(map(ord, INVISIBLE))
_LEET = str.maketrans("013457@$!|", "oieastasil")
_DISGUISED = re.compile(r"[a-z][013457@$!|]+[a-z]|\b[013457@$|][a-z]{2}")
_NOT_WORDS = re.compile(r"[\s*_~`\"'“”‘’«»()\[\]{}.,;:!?¡¿/\\-]+")


def folded(text: str) -> tuple[str, list[int] | None]:
    """Same signs in plain form, and for each the place in `text` it came from (None: the places are the same).

    Wide and foreign digits become ASCII, dashes `-`, fixed spaces blanks; what cannot be seen is left out.
    """
    if text.isascii():
        return text, None
    plain = text.translate(_FOLD)
    if _HIDDEN.search(plain) is None:
        return plain, None
    places = [place for place, sign in enumerate(plain) if sign not in INVISIBLE]
    return "".join([plain[place] for place in places]), places


def plain_words(text: str) -> str:
    """Lower-case words with single spaces: NFKC, no accents, no invisible signs, no punctuation, no markup."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_REMOVE))
        text = "".join([sign for sign in unicodedata.normalize("NFD", text) if not unicodedata.combining(sign)])
    return _NOT_WORDS.sub(" ", text.casefold())


def undisguised(words: str) -> str | None:
    """`1gn0r3` read as `ignore`; None where no word mixes letters with such digits."""
    return words.translate(_LEET) if _DISGUISED.search(words) else None
