"""The identity providers of this installation as rules: one exact issuer each, checked when the process starts.

Owns what differs between Keycloak, Entra, Okta, Google and the rest (defaults, audiences, principal key, type marks).
A configuration that would accept too much ends the start with `ConfigError`. Knows no keys and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from gateway.errors import ConfigError
from gateway.flow.values import ANONYMOUS
from gateway.identity.algorithms import ASYMMETRIC, SPECS, SYMMETRIC
from gateway.identity.claim_path import ClaimPath
from gateway.settings import AccessSettings, IdentitySettings, ProviderSettings

TENANT_MARK = "{tid}"
_GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MUTABLE_SUBJECTS = {"preferred_username", "upn", "unique_name", "name", "nickname", "given_name", "family_name"}

_RESERVED_TENANTS = frozenset({ANONYMOUS.tenant, "*", "(many)"})
"""Nobody's tenant in records, everybody's in documents, and the source of refusals counted together."""

TYPE_DEFAULTS: Mapping[str, Mapping[str, str | None]] = {
    "keycloak": {"roles_claim": "realm_access.roles"},
    "entra": {"scopes_claim": "scp"},
    "okta": {"roles_claim": "groups", "scopes_claim": "scp"},
    "google": {"roles_claim": None, "scopes_claim": None},
}
"""Claim paths used when the configuration does not name its own."""

TYPE_JWKS_HOSTS: Mapping[str, tuple[str, ...]] = {
    "entra": ("login.microsoftonline.com", "login.windows.net", "login.microsoftonline.us"),
    "google": ("www.googleapis.com",),
}
"""Hosts, besides the issuer's own, that a discovery document of this type may send us to."""


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """One issuer and everything that decides whether its token is acceptable. Multi-tenant types give one each."""

    name: str
    settings: ProviderSettings
    issuer: str
    issuers: tuple[str, ...]
    """Exact spellings of `iss` that select this provider; the principal always carries `issuer`."""
    algorithms: frozenset[str]
    audiences: frozenset[str]
    allowed_clients: frozenset[str]
    allowed_typ: frozenset[str]
    directory: str | None
    """Entra: the tenant GUID this issuer is bound to."""
    domains: frozenset[str]
    """Google: Workspace domains (`hd`) that may sign in."""
    roles: ClaimPath | None
    groups: ClaimPath | None
    scopes: ClaimPath | None
    department: ClaimPath | None
    clearance: ClaimPath | None
    tenant: ClaimPath | None
    subject: ClaimPath | None
    person: ClaimPath | None
    jwks_hosts: frozenset[str]
    secret: bytes | None = field(default=None, repr=False)

    @property
    def type(self) -> str:
        return self.settings.type


class ProviderTable:
    """Providers by exact issuer. Raises `ConfigError` when two of them claim the same issuer or name."""

    def __init__(self, configured: Iterable[ProviderSettings]) -> None:
        self._by_issuer: dict[str, Provider] = {}
        names: set[str] = set()
        for settings in configured:
            if settings.name in names:
                raise ConfigError(f"two identity providers are named `{settings.name}`", hint="give each its own name")
            names.add(settings.name)
            for provider in build_providers(settings):
                for issuer in provider.issuers:
                    if issuer in self._by_issuer:
                        raise ConfigError(
                            f"providers `{self._by_issuer[issuer].name}` and `{provider.name}` share one issuer",
                            hint="an issuer belongs to exactly one provider, so that its keys do as well",
                        )
                    self._by_issuer[issuer] = provider
        self.algorithms: frozenset[str] = frozenset().union(*(p.algorithms for p in self._by_issuer.values()))

    def get(self, issuer: str) -> Provider | None:
        """Exact, case-sensitive; no prefix, no trailing slash, no pattern."""
        return self._by_issuer.get(issuer)

    def all(self) -> tuple[Provider, ...]:
        return tuple(dict.fromkeys(self._by_issuer.values()))

    def __len__(self) -> int:
        return len(self.all())


def warnings_of_people(identity: IdentitySettings, access: AccessSettings) -> tuple[str, ...]:
    """With four eyes and several providers, one human may be two people to the gateway; what to do about it."""
    nameless = [f"`{one.name}`" for one in identity.providers if one.person_claim is None]
    if not (access.four_eyes and nameless and len(identity.providers) > 1):
        return ()
    return (
        "with four eyes and several identity providers, one human may be two people: set `person_claim` of "
        + ", ".join(nameless),
    )


def build_providers(settings: ProviderSettings) -> tuple[Provider, ...]:
    """One provider, or one per configured directory when the issuer holds `{tid}`. Raises `ConfigError`."""
    if TENANT_MARK not in settings.issuer:
        return (_build(settings, settings.issuer, settings.name, None),)
    if settings.type != "entra" or not settings.tenant_ids:
        raise _wrong(settings, "an issuer with `{tid}` needs type `entra` and the list `tenant_ids`")
    return tuple(
        _build(settings, settings.issuer.replace(TENANT_MARK, tid), f"{settings.name}/{tid}", tid)
        for tid in settings.tenant_ids
    )


def is_reserved_tenant(name: str) -> bool:
    """Whether the name means something else than one tenant; neither a token nor a provider may carry it."""
    return name.strip() in _RESERVED_TENANTS


def _build(settings: ProviderSettings, issuer: str, name: str, directory: str | None) -> Provider:
    _check_issuer(settings, issuer)
    if not settings.audiences or any(not audience.strip() for audience in settings.audiences):
        raise _wrong(settings, "`audiences` must name at least one audience: without it any application's token fits")
    if is_reserved_tenant(settings.tenant) or not settings.tenant.strip():
        raise _wrong(settings, "`tenant` is empty or a reserved name")
    algorithms = _algorithms(settings)
    secret = _secret(settings, algorithms)
    _check_key_source(settings)
    if settings.type == "google" and not settings.tenant_ids:
        raise _wrong(settings, "type `google` needs `tenant_ids`: the Workspace domains (`hd`) that may sign in")
    if settings.subject_claim in _MUTABLE_SUBJECTS:
        raise _wrong(settings, f"`{settings.subject_claim}` can be changed by people and must not identify anybody")
    for tid in settings.tenant_ids if settings.type == "entra" else ():
        if _GUID.fullmatch(tid) is None:
            raise _wrong(settings, "`tenant_ids` of type `entra` are directory GUIDs; `common` is not a tenant")
    bound = directory
    if settings.type == "entra" and bound is None:
        found = _GUID.search(issuer)
        bound = found.group(0) if found else None
    issuers: tuple[str, ...] = (issuer,)
    if settings.type == "google" and issuer == "https://accounts.google.com":
        issuers = (issuer, "accounts.google.com")
    return Provider(
        name=name,
        settings=settings,
        issuer=issuer,
        issuers=issuers,
        algorithms=algorithms,
        audiences=frozenset(settings.audiences),
        allowed_clients=frozenset(settings.allowed_clients),
        allowed_typ=frozenset(item.lower() for item in settings.allowed_typ),
        directory=bound,
        domains=frozenset(settings.tenant_ids) if settings.type == "google" else frozenset(),
        roles=_path(settings, "roles_claim"),
        groups=_path(settings, "groups_claim"),
        scopes=_path(settings, "scopes_claim"),
        department=_path(settings, "department_claim"),
        clearance=_path(settings, "clearance_claim"),
        tenant=_path(settings, "tenant_claim"),
        subject=_path(settings, "subject_claim"),
        person=_path(settings, "person_claim"),
        jwks_hosts=_jwks_hosts(settings, issuer),
        secret=secret,
    )


def _path(settings: ProviderSettings, name: str) -> ClaimPath | None:
    text: str | None = getattr(settings, name)
    if name not in settings.model_fields_set:
        text = TYPE_DEFAULTS.get(settings.type, {}).get(name, text)
    try:
        return None if text is None else ClaimPath.parse(text)
    except ValueError as error:
        raise _wrong(settings, f"`{name}`: {error}") from None


def _check_issuer(settings: ProviderSettings, issuer: str) -> None:
    if settings.type == "google" and issuer == "accounts.google.com":
        raise _wrong(settings, "write the issuer as https://accounts.google.com; the short form is then accepted too")
    if settings.type == "shared_secret":
        if not issuer.strip():
            raise _wrong(settings, "`issuer` must not be empty")
        return
    url = _url(settings, "issuer", issuer)
    local_http = url.scheme == "http" and settings.allow_http
    if url.username or url.query or url.fragment or not url.hostname or not (url.scheme == "https" or local_http):
        raise _wrong(settings, "`issuer` must be an https URL without user, query or fragment")


def _algorithms(settings: ProviderSettings) -> frozenset[str]:
    family = SYMMETRIC if settings.type == "shared_secret" else ASYMMETRIC
    named = settings.algorithms
    if settings.type == "shared_secret" and "algorithms" not in settings.model_fields_set:
        named = ("HS256",)
    for name in named:
        if name not in SPECS or name not in family:
            raise _wrong(
                settings, f"algorithm `{name}` is not available for this type; choose from {', '.join(sorted(family))}"
            )
    if not named:
        raise _wrong(settings, "`algorithms` must not be empty")
    default = settings.default_key_algorithm
    if default is not None and default not in named:
        raise _wrong(settings, "`default_key_algorithm` must be one of `algorithms`")
    accepted = set(named)
    if "EdDSA" in accepted or "Ed25519" in accepted:
        accepted |= {"EdDSA", "Ed25519"}
    return frozenset(accepted)


def _secret(settings: ProviderSettings, algorithms: frozenset[str]) -> bytes | None:
    if settings.type != "shared_secret":
        if settings.shared_secret is not None:
            raise _wrong(settings, "`shared_secret` belongs to type `shared_secret` only")
        return None
    if settings.jwks_url is not None or settings.jwks_file is not None:
        raise _wrong(settings, "type `shared_secret` can have no key set")
    secret = settings.shared_secret.get_secret_value().encode() if settings.shared_secret is not None else b""
    needed = max(SPECS[name].min_secret_bytes for name in algorithms)
    if len(secret) < needed:
        raise _wrong(settings, f"`shared_secret` has {len(secret)} bytes; at least {needed} are needed")
    return secret


def _check_key_source(settings: ProviderSettings) -> None:
    if settings.type == "shared_secret":
        return
    if settings.jwks_file is not None:
        if settings.jwks_url is not None:
            raise _wrong(settings, "set `jwks_url` or `jwks_file`, not both")
        return
    if settings.jwks_url is None:
        if not settings.discovery:
            raise _wrong(settings, "without discovery a `jwks_url` or `jwks_file` is needed")
        return
    url = _url(settings, "jwks_url", settings.jwks_url)
    if (
        url.username
        or not url.hostname
        or not (url.scheme == "https" or (url.scheme == "http" and settings.allow_http))
    ):
        raise _wrong(settings, "`jwks_url` must be https (plain http only with `allow_http`, for loopback tests)")


def _jwks_hosts(settings: ProviderSettings, issuer: str) -> frozenset[str]:
    own = urlsplit(issuer).hostname
    extra = (*TYPE_JWKS_HOSTS.get(settings.type, ()), *settings.jwks_hosts)
    return frozenset(host.lower() for host in (own, *extra) if host)


def _url(settings: ProviderSettings, name: str, text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        raise _wrong(settings, f"`{name}` is not a URL") from None


def _wrong(settings: ProviderSettings, problem: str) -> ConfigError:
    return ConfigError(f"identity provider `{settings.name}`: {problem}", hint="see docs/guides/identity.md")
