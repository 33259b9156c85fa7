"""Numbers behind the word that says what they are (`RUT`, `cédula`, `tarjeta`), however they are written.

The word decides which kinds are tried, so that a bare run of digits with one check digit counts as proven, separators
may be anything that `groups` allows, and numbers without any check digit are found at all (those only look like one).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from gateway.guardrails.detectors import kinds
from gateway.guardrails.detectors.form import GROUPED
from gateway.guardrails.detectors.groups import LEVELS, Groups, Run
from gateway.guardrails.detectors.kinds import Kind
from gateway.guardrails.detectors.orders import is_named_otherwise
from gateway.guardrails.spans import Span

_NO = r"(?! (?:de )?(?:habitabilidad|catastral|hipotecaria|notificaci|citaci|evaluaci|parcelari|urban|real))"
_SPANISH = (kinds.NIF, kinds.NIE, kinds.CIF)
_CITIZEN = (*_SPANISH, kinds.PE_DNI_CHECKED, kinds.PE_DNI, kinds.AR_DNI)
_CEDULA = (kinds.EC_CEDULA, kinds.UY_CEDULA, kinds.DO_CEDULA, kinds.VE_RIF, kinds.CO_CEDULA)
_WORDS: tuple[tuple[str, str, tuple[Kind, ...]], ...] = (
    # literals that it begins with, the word, what it announces
    ("dni|d.n.i", r"dni|d\.n\.i\.?", _CITIZEN),
    ("documento n", r"documento nacional(?: de identidad)?", _CITIZEN),
    ("documento de i", r"documento de identidad", _CITIZEN),
    ("national id", r"national id(?:entity)?(?: card| number)?", _CITIZEN),
    ("nif|n.i.f|nie|n.i.e", r"nif|n\.i\.f\.?|nie|n\.i\.e\.?", _SPANISH),
    ("document", r"documento?", _SPANISH),
    ("cif|c.i.f|vat|tax id", r"cif|c\.i\.f\.?|vat|tax id", _SPANISH),
    ("nss|naf|seguridad social|social security", r"nss|naf|seguridad social|social security", (kinds.NSS,)),
    ("afiliaci", r"afiliaci[oó]n", (kinds.NSS,)),
    ("curp", "curp", (kinds.CURP,)),
    ("rfc", "rfc", (kinds.RFC,)),
    ("clabe|interbancaria", "clabe|interbancaria", (kinds.CLABE,)),
    ("cpf", "cpf", (kinds.CPF,)),
    ("cnpj", "cnpj", (kinds.CNPJ,)),
    ("rut|run|r.u.t", r"rut|run|r\.u\.t\.?", (kinds.RUT,)),
    ("cuit|cuil|cdi", "cuit|cuil|cdi", (kinds.CUIT,)),
    ("nit|n.i.t", r"nit|n\.i\.t\.?", (kinds.NIT, kinds.CO_CEDULA)),
    ("cédula|cedula", rf"c[eé]dula{_NO}(?: de (?:ciudadan[ií]a|identidad|extranjer[ií]a))?", _CEDULA),
    ("c.c|cc|c.i|ci", r"c\.c\.?|cc|c\.i\.?|ci", _CEDULA),
    ("ruc|r.u.c", r"ruc|r\.u\.c\.?", (kinds.PE_RUC, kinds.EC_RUC)),
    ("rif", "rif", (kinds.VE_RIF,)),
    ("iban", "iban", (kinds.IBAN,)),
    ("cuenta|account|conta", "cuenta|account|conta", (kinds.IBAN, kinds.CLABE)),
    ("tarjeta|card|visa|mastercard|amex", "tarjetas?|card|visa|mastercard|amex", (kinds.CARD,)),
    ("cartão|cartao", "cart[aã]o", (kinds.CARD,)),
)
_AGAINST = r"|(?:dni|nif|nie|cc|rut|nit|ruc|cpf|cuit|cuil)(?=[0-9]{6,11}(?![0-9a-z]))"
"""Words that may be written against a number that has no form of its own."""
_STARTS = tuple(
    (literal, re.compile(rf"(?:{words})(?![a-z0-9áéíóúñ]){_AGAINST}"), announced)
    for literals, words, announced in _WORDS
    for literal in literals.split("|")
)
GAP = 36
"""Characters between an announcing word and its number: ` del arrendatario, si lo tiene: `."""
_NEAR = re.compile(
    r"(?:\.(?= ?[0-9]{6,10}(?![0-9/-])| ?[0-9]{1,3}(?:\.[0-9]{3}){2}))?"
    r"(?:[^0-9.;?!]|(?<=[\s(]n)\.|(?<=[\s(]n[or])\.|(?<=núm)\.|(?<=num)\.|(?<=nro)\.|\.º|\?(?=\w)){0,32}"
)
"""What may stand between the word and a number without check digit: no end of a sentence, but the full stop
of a word that is cut short (`DNI. 30123456`)."""
_UNCHECKED = frozenset({kinds.CO_CEDULA, kinds.AR_DNI, kinds.PE_DNI})
_GLUED_WORDS = (
    "DNI NIF NIE CIF DOC ID CURP RFC RUT RUN NIT CUIT CUIL RUC CPF CNPJ CI CC IBAN VAT CARD CLABE TARJETA NO NUM"
)
_GLUED = frozenset(_GLUED_WORDS.split())
"""Words that may be written against a number, also where another one announced it."""
_BEFORE = _GLUED | {"ES", "PAN", "VISA"}
"""What may be written against a number, also where it stands apart as a part of another one."""
_THOUSANDS = re.compile(r"[0-9]{6,10}|[0-9]{1,3}(?:[. ][0-9]{3}){1,3}")
_REST = re.compile(r"(?:[ .,|/-]| [-|] )[0-9]{1,2}(?![0-9])")
"""A last group that is no thousand."""
_FIELD = re.compile(r"[,;|]")
"""Between two values of a row; a tab is a blank in a flat text."""
_ANY_GROUPS = 2
"""The level from which a number without check digit may be in other groups than thousands."""
MOST_RUNS = 36
"""Groups that are looked at: an IBAN sign by sign has 34."""


def announced(groups: Groups) -> Iterator[Span]:
    lowered = groups.lowered
    for literal, words, kinds_of_word in _STARTS:
        at = lowered.find(literal)
        while at >= 0:
            found = None if lowered[at - 1 : at].isalnum() else words.match(lowered, at)
            place = -1 if found is None else at if lowered[found.end() - 1 :][1:2].isdigit() else found.end()
            span = None if found is None else _number_behind(groups, place, kinds_of_word)
            if span is not None:
                yield span
            at = lowered.find(literal, at + 1)


def _number_behind(groups: Groups, place: int, announced: tuple[Kind, ...]) -> Span | None:
    text, lowered = groups.text, groups.lowered
    runs, levels = _first_chain(groups, place)
    if not runs:
        return None
    near = _NEAR.match(lowered, place)
    by_word = near is not None and near.end() >= runs[0].start and not is_named_otherwise(lowered, place, runs[0].start)
    sizes = [_size(text, runs, levels, most) for most in range(LEVELS)]
    firsts = _firsts(runs)
    fields = _fields(text, runs)
    for checked, allowed in ((True, _checked(announced)), (False, _unchecked(announced) if by_word else ())):
        if allowed and not checked:
            for first, last in fields:
                span = _field(text, runs[first:last], allowed)
                if span is not None:
                    return span
        tried = set[tuple[int, bool]]()
        for most, size in enumerate(sizes):
            free = checked or most >= _ANY_GROUPS
            if allowed and (size, free) not in tried:
                tried.add((size, free))
                for first in firsts:
                    span = _longest(text, runs[first:size], allowed, free=free)
                    if span is not None:
                        return span
        if allowed and checked:
            for first, last in fields:
                span = _longest(text, runs[first:last], allowed, free=True)
                if span is not None and span.end == runs[last - 1].end:
                    return span
    return None


def _field(text: str, runs: Sequence[Run], allowed: tuple[Kind, ...]) -> Span | None:
    """A whole field as a number without check digit; what the next field begins with is no last group of it."""
    start, end = runs[0].start, runs[-1].end
    return _longest(text, runs, allowed, free=True) if _THOUSANDS.fullmatch(text, start, end) else None


def _fields(text: str, runs: Sequence[Run]) -> list[tuple[int, int]]:
    """The first and the last run of each field but the first, where the runs are a row of a table of values."""
    starts = [at for at in range(1, len(runs)) if _FIELD.search(text, runs[at - 1].end, runs[at].start)]
    blanks = [at for at in range(1, len(runs)) if text[runs[at - 1].end : runs[at].start] == " "]
    rows = [starts] if starts else [blanks] if blanks else []
    return [pair for row in rows for pair in pairwise([*row, len(runs)])]


def _size(text: str, runs: Sequence[Run], levels: Sequence[int], most: int) -> int:
    """How many of the runs the separators of this level join."""
    size = 1
    while size < len(runs) and _joins(text, runs, levels, size, most):
        size += 1
    return size


def _firsts(runs: Sequence[Run]) -> tuple[int, ...]:
    """With the capital letters before the digits, and without."""
    digits = next(place for place, run in enumerate(runs) if run.numeric)
    return (0, digits) if digits else (0,)


def _longest(text: str, runs: Sequence[Run], allowed: tuple[Kind, ...], *, free: bool) -> Span | None:
    """As many of the runs as are one number, or None. Not `free`: in one piece or in thousands only."""
    lengths = _lengths(allowed)
    bare = "".join([run.text.upper() for run in runs])
    size = len(bare)
    for last in reversed(runs):
        for glued in _ends(last.text):
            for cut in _beginnings(runs[0].text.upper()):
                if size - glued - cut in lengths:
                    start, stop, number = runs[0].start + cut, last.end - glued, bare[cut : size - glued]
                    if not (free or (_THOUSANDS.fullmatch(text, start, stop) and not _REST.match(text, stop))):
                        continue
                    for kind in allowed:
                        if kind.holds(number) and not (kind is kinds.PE_DNI and "." in text[start:stop]):
                            return Span(start, stop, kind.category, kind.detector, kind not in _UNCHECKED)
        size -= len(last.text)
    return None


@cache
def _lengths(allowed: tuple[Kind, ...]) -> frozenset[int]:
    return frozenset(length for kind in allowed for length in kind.lengths)


@cache
def _unchecked(announced: tuple[Kind, ...]) -> tuple[Kind, ...]:
    return tuple(kind for kind in announced if kind in _UNCHECKED)


@cache
def _checked(announced: tuple[Kind, ...]) -> tuple[Kind, ...]:
    return tuple(kind for kind in announced if kind not in _UNCHECKED)


def _first_chain(groups: Groups, place: int) -> tuple[list[Run], list[int]]:
    """The first group with digits behind `place`, capital letters right before it, and what may go on with it;
    `levels[n]` is that of the separator before group n."""
    runs, levels = list[Run](), list[int]()
    numeric = False
    for at in range(bisect_left(groups.runs, (place,)), len(groups.runs)):
        run = groups.runs[at]
        if run.text in _GLUED:  # another announcing word
            if numeric:
                break
            runs, levels = [], []
            continue
        level = groups.levels[at] if runs else 0
        one_letter = len(run.text) == 1 and (
            run.text not in "yoea" if numeric else groups.text.startswith("-", run.end)
        )
        if not (run.joins or one_letter) or level == LEVELS:
            if numeric:
                break
            runs, levels = [], []
            if not (run.joins or one_letter):
                continue
            level = 0
        if not runs and run.start - place > GAP:
            break
        runs.append(run)
        levels.append(level)
        numeric |= run.numeric
        if len(runs) > MOST_RUNS or run.end - runs[0].start > GROUPED:
            break
    return (_from_letters(runs, levels)) if numeric else ([], [])


def _from_letters(runs: list[Run], levels: list[int]) -> tuple[list[Run], list[int]]:
    """Without the words in capitals that only stand before the number: `NIF DEL TITULAR X 1234567 L`."""
    first = next(place for place, run in enumerate(runs) if run.numeric)
    digits_first = runs[first].text[0].isdigit()
    keep = first
    while digits_first and keep > 0 and keep > first - 4:
        keep -= 1
        if len(runs[keep].text) > 1:
            break
    return runs[keep:], [0, *levels[keep + 1 :]]


def _joins(text: str, runs: Sequence[Run], levels: Sequence[int], place: int, most: int) -> bool:
    if most > 0:
        return levels[place] <= most
    first = text[runs[0].end : runs[1].start]
    return levels[place] == 1 and text[runs[place - 1].end : runs[place].start] == first


def _ends(last: str) -> tuple[int, ...]:
    """How many of the last letters may be no part of the number: small ones behind a digit or a capital."""
    kept = last.rstrip("abcdefghijklmnopqrstuvwxyzñ")
    return (0, len(last) - len(kept)) if kept and len(kept) < len(last) else (0,)


def _beginnings(first: str) -> Iterator[int]:
    """The start of a number in its first group: at once, or behind a word that is written against it."""
    yield 0
    letters = len(first) - len(first.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZÑ"))
    for cut in range(1, min(letters, 7) + 1):
        if first[:cut] in _BEFORE:
            yield cut
