"""Identity, tax and social-security numbers of Spain, as they are written. A form that hardly occurs by accident is
certain; a company's number that stands bare only looks like one."""

from __future__ import annotations

from gateway.guardrails.detectors import checksums
from gateway.guardrails.detectors.form import form, weak

NAME = "ids"
_LETTER = r"(?:[-_./]?[A-Za-z]| ?[-/] ?[A-Z]| [A-Z])"
_MACHINE_READABLE = "IDESP[A-Z]{3}[0-9]{6}[0-9]<?"
"""The first line of the back of an identity card, up to the number of its holder (ICAO 9303, TD1)."""

SPAIN = (
    form(
        "es_nif",
        NAME,
        "d8 d2 d1",
        rf"(?:[0-9]{{8}}|[0-9]{{1,2}}[. ][0-9]{{3}}[. ][0-9]{{3}}){_LETTER}",
        checksums.nif,
    ),
    form("es_nif", NAME, "a1", "[KLMklm]-?[0-9]{7}-?[A-Za-z]", checksums.nif),
    form("es_nie", NAME, "a1", rf"[XYZxyz][- ]?(?:[0-9]{{7}}|[0-9]\.[0-9]{{3}}\.[0-9]{{3}}){_LETTER}", checksums.nie),
    form("es_cif", NAME, "a1", r"[A-HJNP-SU-W]-(?:[0-9]{7}|[0-9]{2}\.[0-9]{3}\.[0-9]{2})-?[0-9A-J]", checksums.cif),
    weak("es_cif", NAME, "a1", "[A-HJNP-SU-W][0-9]{7}[0-9A-J]", checksums.cif),
    weak("es_cif", NAME, "a2 a3", "(?i:ES)[- ]?[A-HJNP-SU-W][0-9]{7}[0-9A-J]", lambda text: checksums.cif(text[-9:])),
    form("es_nif", NAME, "a8", f"{_MACHINE_READABLE}[0-9]{{8}}[A-Z]", lambda text: checksums.nif(text[-9:])),
    form("es_nie", NAME, "a8", f"{_MACHINE_READABLE}[XYZ][0-9]{{7}}[A-Z]", lambda text: checksums.nie(text[-9:])),
    form("es_nss", NAME, "d2", "[0-9]{2}/[0-9]{8}/[0-9]{2}", checksums.social_security),
)
