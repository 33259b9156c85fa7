"""API keys of service accounts: their form, their keyed hash, and the check of one that was sent.

`sk-esclusa-<id>-<secret><tag>`: the id finds the row, the tag lets forged keys fail before the database is asked, and
only a keyed hash of the whole is ever stored. Knows storage as an `ApiKeyRepository`; decides no permission.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.errors import ConfigError, Unauthenticated, Unavailable
from gateway.flow.context import Clock
from gateway.flow.values import Principal
from gateway.settings import IdentitySettings

_log = logging.getLogger("esclusa.identity.api_keys")

PREFIX = "sk-esclusa-"
ISSUER = "urn:esclusa:service-accounts"
"""`issuer` of every principal that an API key gives."""
PROVIDER = "api-key"
MIN_PEPPER_CHARS = 32
FLUSH_S = 15.0
_FORM = re.compile(r"sk-esclusa-([0-9a-z]{16})-([0-9A-Za-z]{40})([0-9A-Za-z]{6})")
_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A machine identity: an owner, and rights that were no wider than its maker's."""

    id: str
    tenant: str
    name: str
    owner_issuer: str
    owner_subject: str
    roles: frozenset[str]
    department: str | None
    clearance: str | None
    models: tuple[str, ...] | None
    disabled: bool
    created_by: str
    created_at: datetime
    version: int = 1
    owner_person: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A stored key. `roles` and `models` narrow the account's; None leaves them as they are."""

    key_id: str
    account: ServiceAccount
    digest: bytes = field(repr=False)
    name: str
    roles: frozenset[str] | None
    models: tuple[str, ...] | None
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    replaced_by: str | None = None
    lineage: str = ""
    """Id of the first key of a chain of rotations, which all of them share one budget by; empty: this is the first."""


class ApiKeyRepository(Protocol):
    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """The key with its account. Raises `Unavailable`."""
        ...

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKeyRecord]:
        """Those of them that exist, in any order. Raises `Unavailable`."""
        ...

    async def mark_used(self, used: dict[str, datetime]) -> None:
        """Last use by key id, in one statement. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. `text` is shown to its owner once and stored nowhere."""

    key_id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)


class KeyHasher:
    """Keyed hashes under the pepper (BLAKE2b, RFC 7693). Raises `ConfigError` for a pepper that is too short."""

    def __init__(self, pepper: str) -> None:
        if len(pepper) < MIN_PEPPER_CHARS:
            raise ConfigError(
                f"`identity.api_key_pepper` has {len(pepper)} characters; at least {MIN_PEPPER_CHARS} are needed",
                hint="make one with: openssl rand -base64 48",
            )
        self._store_key = _derive(pepper, b"esclusa-key-hash")
        self._tag_key = _derive(pepper, b"esclusa-key-tag")

    def mint(self, choice: Callable[[str], str] = secrets.choice) -> MintedKey:
        """238 random bits of secret. `choice` picks one character."""
        key_id = "".join(choice(_ID_ALPHABET) for _ in range(16))
        body = "".join(choice(_ALPHABET) for _ in range(40))
        text = f"{PREFIX}{key_id}-{body}{self._tag(key_id, body)}"
        return MintedKey(key_id, text, self.digest(text))

    def digest(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("ascii"), key=self._store_key, digest_size=32).digest()

    def key_id(self, text: str) -> str | None:
        """The id in a key that this installation issued; None for anything else. No I/O, constant-time compare."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        key_id, body, tag = found.groups()
        return key_id if hmac.compare_digest(tag, self._tag(key_id, body)) else None

    def _tag(self, key_id: str, body: str) -> str:
        number = int.from_bytes(
            hashlib.blake2b(f"{key_id}-{body}".encode("ascii"), key=self._tag_key, digest_size=8).digest()
        )
        letters = []
        for _ in range(6):
            number, rest = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[rest])
        return "".join(letters)


class ApiKeyVerifier:
    """Checks keys against the repository and notes their last use, batched."""

    def __init__(self, repository: ApiKeyRepository, settings: IdentitySettings, clock: Clock) -> None:
        pepper = settings.api_key_pepper
        self._hasher = None if pepper is None else KeyHasher(pepper.get_secret_value())
        self._repository = repository
        self._clock = clock
        self._used: dict[str, datetime] = {}

    async def verify(self, text: str) -> Principal:
        """Raises `Unauthenticated` (`invalid_token`, `token_expired`, `token_revoked`) or `Unavailable`."""
        key_id = None if self._hasher is None else self._hasher.key_id(text)
        record = None if key_id is None else await self._repository.find_key(key_id)
        if self._hasher is None or record is None or not hmac.compare_digest(record.digest, self._hasher.digest(text)):
            raise Unauthenticated("The API key is not valid.", hint="check that the whole key was copied")
        return self._accepted(record)

    async def again(self, key_id: str) -> Principal:
        """A key that was verified before, as it is now. Raises as `verify` does."""
        record = await self._repository.find_key(key_id)
        if record is None:
            raise Unauthenticated("The API key is not there any more.", code="token_revoked")
        return self._accepted(record)

    def _accepted(self, record: ApiKeyRecord) -> Principal:
        now = self._clock.now()
        if record.revoked_at is not None or record.account.disabled:
            raise Unauthenticated(
                "The API key has been revoked.",
                code="token_revoked",
                hint="ask the owner of the service account for a new one",
                detail=f"key {record.key_id}",
            )
        if record.expires_at <= now:
            raise Unauthenticated(
                "The API key has expired.",
                code="token_expired",
                hint="rotate keys before they expire: the old one stays valid for the overlap",
                detail=f"key {record.key_id}",
            )
        self._used[record.key_id] = now
        return principal_of(record)

    async def run(self) -> None:
        """Write last uses every 15 s. Ends only by cancellation."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is pending; kept for the next time when the database is away."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._repository.mark_used(used)
        except Unavailable as error:
            self._used = {**used, **self._used}
            _log.warning("last use of %d keys not written: %s", len(used), error.detail or error.message)


def looks_like_api_key(value: str) -> bool:
    return value.startswith("sk-")


def effective_roles(record: ApiKeyRecord) -> frozenset[str]:
    """Never more than the account has now, whatever the key was given when it was made."""
    return record.account.roles if record.roles is None else record.account.roles & record.roles


def effective_models(record: ApiKeyRecord) -> tuple[str, ...] | None:
    outer, inner = record.account.models, record.models
    if outer is None or inner is None:
        return inner if outer is None else outer
    return tuple(model for model in inner if model in outer)


def principal_of(record: ApiKeyRecord) -> Principal:
    account = record.account
    return Principal(
        tenant=account.tenant,
        issuer=ISSUER,
        subject=account.id,
        kind="service",
        roles=effective_roles(record),
        department=account.department,
        clearance=account.clearance,
        client_id=account.name,
        credential_id=record.key_id,
        credential_fingerprint=record.digest[:8].hex(),
        display=account.name,
        provider=PROVIDER,
        issued_at=record.created_at,
        expires_at=record.expires_at,
        narrowed_models=effective_models(record),
        owner=(account.owner_issuer, account.owner_subject),
        owner_person=account.owner_person,
        key_lineage=record.lineage or record.key_id,
    )


def account_principal(account: ServiceAccount) -> Principal:
    """The account at its widest: what a key of it may do when its owner narrows nothing."""
    return Principal(
        tenant=account.tenant,
        issuer=ISSUER,
        subject=account.id,
        kind="service",
        roles=account.roles,
        department=account.department,
        clearance=account.clearance,
        client_id=account.name,
        display=account.name,
        provider=PROVIDER,
        owner=(account.owner_issuer, account.owner_subject),
        owner_person=account.owner_person,
    )


def disk_key(settings: IdentitySettings) -> bytes | None:
    """The key that authenticates local copies; None without a pepper."""
    pepper = settings.api_key_pepper
    return None if pepper is None else _derive(pepper.get_secret_value(), b"esclusa-on-disk")


def _derive(pepper: str, purpose: bytes) -> bytes:
    return hashlib.blake2b(pepper.encode("utf-8"), person=purpose, digest_size=64).digest()
