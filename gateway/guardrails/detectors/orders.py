"""Words that say that a number is something else: an order, an invoice, a part. Pure.

They count against what only looks like the number of a person, never against what its form or check digits prove.
"""

from __future__ import annotations

import re

from gateway.guardrails.spans import Span

REACH = 40
_NAMES = (
    r"\b(?:pedidos?|[oó]rden(?:es)?|orders?|facturas?|fra|invoices?|albar[aá]n(?:es)?|referencias?|references?|"
    r"expedientes?|tickets?|incidencias?|lotes?|lots?|batch(?:es)?|series?|serial|modelos?|models?|piezas?|parts?|"
    r"sku|tracking|gu[ií]as?|env[ií]os?|shipments?|p[oó]lizas?|policy|contratos?|contracts?|art[ií]culos?|items?|"
    r"productos?|products?|versi[oó]n|version|build|c[oó]digos?|codes?|partidas?|asientos?|matr[ií]culas?|isbn|ean|"
    r"tornillos?|salas?|cap[ií]tulos?|chapters?|bastidor|plano|drawing|norma|case|caso{more})"
)
_WORDS = re.compile(_NAMES.replace("{more}", "|ref") + r"[^0-9]{0,16}$")
_AFTER_ANOTHER = re.compile(_NAMES.replace("{more}", "") + r"[^0-9_]{0,16}$")


def is_order_number(span: Span, lowered: str) -> bool:
    """Such a word stands right before it."""
    if not (span.detector == "ids" or span.category == "phone") or lowered[span.start] == "+":
        return False
    return _WORDS.search(lowered, max(0, span.start - REACH), span.start) is not None


def is_named_otherwise(lowered: str, start: int, end: int) -> bool:
    """Such a word follows one that announces the number of a person; `ref:` and the name of a file do not count."""
    return _AFTER_ANOTHER.search(lowered, start, end) is not None
