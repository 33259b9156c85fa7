"""All detectors of personal data and secrets over one piece of text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gateway.guardrails.contact import CONTACT
from gateway.guardrails.detector import Finder
from gateway.guardrails.folding import folded
from gateway.guardrails.payment import PAYMENT
from gateway.guardrails.persons import LATIN_AMERICA, SPAIN
from gateway.guardrails.secrets import SECRETS
from gateway.guardrails.spans import Span, merged

NUMBERS: tuple[Finder, ...] = (*PAYMENT, *SPAIN, *LATIN_AMERICA)
WORDS: tuple[Finder, ...] = (*SECRETS, *CONTACT)
_TWO_DIGITS = re.compile(r"[0-9]{2}")
"""What every number of `NUMBERS` holds; most sentences do not."""


def scan(text: str) -> list[Span]:
    """What is in `text`, in order, overlaps merged."""
    plain, places = folded(text)
    lowered = plain.lower()
    finders: Iterable[Finder] = (*WORDS, *NUMBERS) if _TWO_DIGITS.search(plain) else WORDS
    spans = merged([span for finder in finders for span in finder.find(plain, lowered)])
    if places is None:
        return spans
    return [replace(span, start=places[span.start], end=places[span.end - 1] + 1) for span in spans]
