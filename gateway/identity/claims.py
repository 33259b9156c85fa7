"""Maps verified claims to a `Principal` by configured paths only. Pure; nothing is implied, merged or defaulted.

Owns the shape rules of subject, roles, groups, scopes, department, tenant and clearance. A claim of the wrong shape
refuses the token: a string where a list belongs must never turn into roles. Knows no signatures and no policy.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.flow.values import Principal
from gateway.identity.claim_path import ClaimPath
from gateway.identity.claim_rules import client_of, invalid, is_service
from gateway.identity.providers import Provider, is_reserved_tenant

MAX_ENTRIES = 512
MAX_CHARS = 256
CLEARANCES = ("public", "internal", "confidential", "restricted")
_SCOPE_LEAVES = ("scope", "scp")
_EMPTY: frozenset[str] = frozenset()

Claims = Mapping[str, Any]


def principal_from(provider: Provider, claims: Claims, *, fingerprint: str) -> Principal:
    """The identity in `claims`, which passed `check_claims`. Raises `Unauthenticated` `invalid_token`."""
    named = _names(provider.roles, claims)
    role_map = provider.settings.role_map
    roles = frozenset(role for value in named for role in role_map.get(value, ())) if role_map else named
    return Principal(
        tenant=_tenant(provider, claims),
        issuer=provider.issuer,
        subject=_subject(provider, claims),
        kind="service" if is_service(provider, claims) else "user",
        roles=roles,
        groups=_names(provider.groups, claims),
        scopes=_names(provider.scopes, claims),
        department=_text(provider.department, claims),
        clearance=_clearance(provider, claims),
        client_id=client_of(claims),
        credential_id=_credential_id(claims),
        credential_fingerprint=fingerprint,
        display=_display(claims),
        provider=provider.settings.name,
        issued_at=datetime.fromtimestamp(claims["iat"], UTC),
        expires_at=datetime.fromtimestamp(claims["exp"], UTC),
        person=_person(provider, claims),
    )


def clean_text(value: object, what: str) -> str:
    """A non-blank string of at most 256 characters that a log, a header and a database can all hold."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_CHARS or not value.isprintable():
        invalid(f"{what} is not a printable string of 1 to {MAX_CHARS} characters")
    return value


def _subject(provider: Provider, claims: Claims) -> str:
    """The stable id of the type: Entra `tid`+`oid`, Okta `uid`, else `sub`; never a name that people can change."""
    subject = clean_text(claims.get("sub"), "sub")
    if provider.subject is not None:
        if provider.subject.leaf == "email" and claims.get("email_verified") is not True:
            invalid("subject_claim is email and the e-mail is not verified")
        return clean_text(provider.subject.find(claims), "the subject claim")
    if provider.type == "entra" and "oid" in claims and "tid" in claims:
        return f"{clean_text(claims['tid'], 'tid')}:{clean_text(claims['oid'], 'oid')}"
    if provider.type == "okta" and "uid" in claims:
        return clean_text(claims["uid"], "uid")
    return subject


def _person(provider: Provider, claims: Claims) -> str | None:
    """A digest, so that neither a staff number nor an address is stored with what the person did. Case does not
    count: providers write one address in different ways, and taking two people for one only asks for a third."""
    path = provider.person
    if path is None or (path.leaf == "email" and claims.get("email_verified") is not True):
        return None
    value = path.find(claims)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None:
        return None
    name = unicodedata.normalize("NFKC", clean_text(value, path.text)).strip().casefold()
    return hashlib.sha256(f"esclusa-person\0{name}".encode()).hexdigest()[:32]


def _tenant(provider: Provider, claims: Claims) -> str:
    if provider.tenant is None:
        return provider.settings.tenant
    tenant = clean_text(provider.tenant.find(claims), "the tenant claim")
    if is_reserved_tenant(tenant):
        invalid("the tenant claim is a reserved name")
    return tenant


def _names(path: ClaimPath | None, claims: Claims) -> frozenset[str]:
    if path is None:
        return _EMPTY
    value = path.find(claims)
    if value is None:
        return _EMPTY
    if isinstance(value, str) and path.leaf in _SCOPE_LEAVES:
        value = value.split()
    if isinstance(value, str):
        # A fresh token would look the same: what helps is another mapping at the provider.
        invalid(
            f"{path.text} is a text and not a list of names",
            f"The claim `{path.text}` is a text where a list of names belongs.",
            f"let your identity provider emit `{path.text}` as a multi-valued claim: a list, even of one name",
        )
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        invalid(f"{path.text} is not a list of at most {MAX_ENTRIES} names")
    return frozenset(clean_text(item, path.text) for item in value)


def _text(path: ClaimPath | None, claims: Claims) -> str | None:
    value = None if path is None else path.find(claims)
    return None if path is None or value is None else clean_text(value, path.text)


def _clearance(provider: Provider, claims: Claims) -> str | None:
    value = _text(provider.clearance, claims)
    if value is not None and value not in CLEARANCES:
        invalid("the clearance claim is none of the data classes")
    return value


def _credential_id(claims: Claims) -> str | None:
    for name in ("jti", "uti"):
        if name in claims:
            return clean_text(claims[name], name)
    return None


def _display(claims: Claims) -> str | None:
    """For people to read only. An e-mail counts when its provider verified it."""
    names = ["name", "preferred_username"] + (["email"] if claims.get("email_verified") is True else [])
    for name in names:
        value = claims.get(name)
        if isinstance(value, str) and value.strip() and len(value) <= MAX_CHARS and value.isprintable():
            return value
    return None
