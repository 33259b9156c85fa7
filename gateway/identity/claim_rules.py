"""Checks after the signature: audience, token type, validity period, client.

Owns the checks of RFC 8725, RFC 9068 and the providers' own type marks. Pure: claims and a time in, nothing or a
refusal out. Fetches nothing, whatever address a claim may hold; maps no roles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gateway.errors import NotPermitted, Unauthenticated
from gateway.identity.providers import Provider
from gateway.identity.strict_json import MAX_SAFE_INTEGER

Claims = Mapping[str, Any]

_ACCESS_PAYLOAD_TYPES = {"bearer", "jwt", "at+jwt"}
_ID_TOKEN_MARKS = ("at_hash", "c_hash", "s_hash")
_CLIENT_CLAIMS = ("azp", "appid", "cid", "client_id")
_RFC9068_REQUIRED = ("client_id", "jti")
_MAX_AUDIENCES = 64


def invalid(
    detail: str,
    message: str = "The token's claims are not acceptable.",
    hint: str = "get a fresh token from your identity provider",
) -> NoReturn:
    raise Unauthenticated(message, detail=detail, hint=hint)


def wrong_type(detail: str) -> NoReturn:
    raise Unauthenticated(
        "This kind of token is not an access token.",
        code="wrong_token_type",
        hint="send an access token issued for this API, not an ID, refresh or logout token",
        detail=detail,
    )


def check_header_type(provider: Provider, header: Mapping[str, Any]) -> None:
    """RFC 8725 section 3.11. RFC 9068 providers demand `at+jwt`."""
    named = header.get("typ")
    kind = "absent" if named is None else str(named).lower()
    allowed = {"at+jwt", "application/at+jwt"} if provider.type == "rfc9068" else provider.allowed_typ
    if kind not in allowed:
        wrong_type("header typ")


def check_claims(provider: Provider, claims: Claims, now_s: float) -> None:
    """Every rule on claims but the subject's. `now_s` is Unix time in seconds.

    Raises `Unauthenticated` (`invalid_token`, `wrong_token_type`, `wrong_audience`, `wrong_issuer`, `token_expired`,
    `token_not_yet_valid`) or `NotPermitted` (`client_not_allowed`, `groups_overage`).
    """
    _check_payload_type(provider, claims)
    audiences = _check_audience(provider, claims)
    _check_times(provider, claims, now_s)
    client = client_of(claims)
    _check_client(provider, client, audiences)
    _check_binding(provider, claims)
    if provider.type == "entra":
        _check_entra(provider, claims, client)
    elif provider.type == "google":
        _check_google(provider, claims, client)
    elif provider.type == "okta" and client is None:
        wrong_type("no client id: not an access token of a custom authorization server")
    elif provider.type == "rfc9068":
        for name in _RFC9068_REQUIRED:
            if not isinstance(claims.get(name), str) or not claims[name]:
                invalid(f"{name} is required by RFC 9068")
    if is_service(provider, claims) and not provider.settings.allow_services:
        raise NotPermitted(
            "Service principals of this identity provider are not admitted.",
            code="client_not_allowed",
            hint="sign in as a person, or ask for a service account of this gateway",
            detail=provider.name,
        )


def client_of(claims: Claims) -> str | None:
    """The application that asked for the token, from the first of `azp`, `appid`, `cid`, `client_id` that is there."""
    for name in _CLIENT_CLAIMS:
        if name in claims:
            value = claims[name]
            if not isinstance(value, str) or not 1 <= len(value) <= 256 or not value.isprintable():
                invalid(f"{name} is not a short string")
            return value
    return None


def is_service(provider: Provider, claims: Claims) -> bool:
    """True for app-only tokens: client credentials, not a person. Marks that are optional at the provider are not
    relied on alone: a machine must not pass for somebody who signed in."""
    if provider.type == "entra":
        # `idtyp` is an optional claim. A person's `sub` differs per application and their token has `scp`.
        alone = "idtyp" not in claims and "scp" not in claims and "oid" in claims and claims["oid"] == claims.get("sub")
        return claims.get("idtyp") == "app" or alone
    if provider.type == "keycloak":
        named = str(claims.get("preferred_username", "")).startswith("service-account-")
        return named or "clientHost" in claims or "clientAddress" in claims
    if provider.type == "google":
        return str(claims.get("email", "")).endswith(".gserviceaccount.com")
    if provider.type == "okta":
        return "uid" not in claims and claims.get("sub") == claims.get("cid")
    if provider.type == "rfc9068":
        return claims.get("sub") == claims.get("client_id")  # RFC 9068 section 5
    return claims.get("gty") == "client-credentials" or claims.get("sub") in [
        claims[name] for name in _CLIENT_CLAIMS if name in claims
    ]


def _check_payload_type(provider: Provider, claims: Claims) -> None:
    kind = claims.get("typ")
    if kind is not None:
        if not isinstance(kind, str):
            invalid("claim typ is not a string")
        if kind.lower() not in _ACCESS_PAYLOAD_TYPES:
            wrong_type("claim typ")
    if "events" in claims:
        wrong_type("a security event or logout token")
    if provider.type != "google" and any(mark in claims for mark in _ID_TOKEN_MARKS):
        wrong_type("an ID token")


def _check_audience(provider: Provider, claims: Claims) -> int:
    audience = claims.get("aud")
    if "aud" in claims and not isinstance(audience, str | list):
        invalid("aud is neither a string nor a list")
    values = [audience] if isinstance(audience, str) else (audience or [])
    if len(values) > _MAX_AUDIENCES or not all(isinstance(value, str) for value in values):
        invalid("aud is not a list of strings")
    if provider.audiences.isdisjoint(values):
        raise Unauthenticated(
            "The token was issued for another audience.",
            code="wrong_audience",
            hint="ask your identity provider for a token whose `aud` names this gateway",
            detail=f"{provider.name}: {len(values)} audiences",
        )
    return len(values)


def _number(claims: Claims, name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        invalid(f"{name} is not a number")
    if not math.isfinite(value) or abs(value) >= MAX_SAFE_INTEGER:
        invalid(f"{name} is out of range")
    return float(value)


def _check_times(provider: Provider, claims: Claims, now_s: float) -> None:
    for name in ("exp", "iat"):
        if name not in claims:
            invalid(f"{name} is missing")
    leeway = provider.settings.leeway_s
    expires, issued = _number(claims, "exp"), _number(claims, "iat")
    starts = _number(claims, "nbf") if "nbf" in claims else issued
    if expires <= now_s - leeway:
        raise Unauthenticated(
            "The token has expired.", code="token_expired", hint="get a fresh token from your identity provider"
        )
    if starts > now_s + leeway or issued > now_s + leeway:
        raise Unauthenticated(
            "The token is not valid yet.",
            code="token_not_yet_valid",
            hint="check the clocks of your identity provider and of this gateway",
        )
    if expires <= issued:
        invalid("exp is not after iat")
    if expires - issued > provider.settings.max_lifetime_s:
        invalid("lifetime over the limit", "The token lives longer than this gateway accepts.")


def _check_client(provider: Provider, client: str | None, audiences: int) -> None:
    allowed = provider.allowed_clients
    needed = provider.settings.require_client or (bool(allowed) and audiences > 1)
    if (client is None and needed) or (client is not None and allowed and client not in allowed):
        raise NotPermitted(
            "The application that asked for this token may not use this gateway.",
            code="client_not_allowed",
            hint="ask an administrator to add the application to the provider's allowed clients",
            detail=f"{provider.name}: client {client!r}",
        )


def _check_binding(provider: Provider, claims: Claims) -> None:
    if "cnf" in claims and not provider.settings.allow_unbound:
        invalid("cnf: sender-constrained tokens are not supported", "The token is bound to a key of its holder.")


def _check_entra(provider: Provider, claims: Claims, client: str | None) -> None:
    """Microsoft's access token reference: `tid` and `iss` belong together, `ver` names the issuer's form."""
    directory = claims.get("tid")
    bound = provider.directory
    mismatch = isinstance(directory, str) and bound is not None and directory.lower() != bound.lower()
    listed = provider.settings.tenant_ids
    foreign = isinstance(directory, str) and bool(listed) and directory.lower() not in {t.lower() for t in listed}
    if mismatch or foreign or (directory is not None and not isinstance(directory, str)):
        raise Unauthenticated("The token comes from another directory.", code="wrong_issuer", detail="tid and iss")
    if bound is not None and directory is None:
        invalid("tid is missing")
    version = claims.get("ver")
    host = provider.issuer.split("/")[2] if "://" in provider.issuer else ""
    expected = {"sts.windows.net": "1.0", "login.microsoftonline.com": "2.0"}.get(host)
    if expected is not None and version != expected:
        invalid("ver does not fit the issuer")
    _check_overage(provider, claims)
    if client is None:
        wrong_type("no azp or appid: not an access token")


def _check_overage(provider: Provider, claims: Claims) -> None:
    """Over 200 groups Entra sends a pointer instead of the list. The address in it is never fetched."""
    names = claims.get("_claim_names")
    pointed = isinstance(names, Mapping) and bool({"groups", "roles", "wids"} & set(names))
    if (pointed or "groups:src1" in claims or "hasgroups" in claims) and not provider.settings.accept_groups_overage:
        raise NotPermitted(
            "The token holds a pointer instead of your groups, because there are too many of them.",
            code="groups_overage",
            hint="in Entra, emit only groups assigned to the application, or use app roles instead of groups",
            detail=provider.name,
        )


def _check_google(provider: Provider, claims: Claims, client: str | None) -> None:
    """Only Workspace accounts of the configured domains; a service account only when its client is listed."""
    email, verified = claims.get("email"), claims.get("email_verified")
    if is_service(provider, claims):
        if verified is not True or client is None or client not in provider.allowed_clients:
            invalid("Google service account that is not listed")
        return
    domain = claims.get("hd")
    if not isinstance(domain, str) or domain not in provider.domains:
        invalid("hd is not a configured Workspace domain", "The account is not of an admitted Workspace domain.")
    if not isinstance(email, str) or verified is not True or email.rpartition("@")[2].lower() != domain.lower():
        invalid("e-mail is not verified or of another domain")
