"""Service accounts and their keys: make, narrow, rotate, revoke. The only way to a new API key.

Owns the order of the steps (idempotency, rights, write, refresh). What may be given is decided by `narrowing`; SQL is
the repository's. A key's text exists in the answer that makes it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from gateway.errors import Conflict, NotFound, Objection, PreconditionFailed, Unavailable
from gateway.flow.context import Clock, IdSource, RequestContext
from gateway.flow.values import Principal
from gateway.identity.api_keys import (
    ApiKeyRecord,
    KeyHasher,
    ServiceAccount,
    account_principal,
    effective_models,
    effective_roles,
)
from gateway.identity.narrowing import Rights, first_objection, rights_of, within
from gateway.identity.repository import IdentityRepository
from gateway.identity.revocations import RevocationList
from gateway.identity.store import NameTaken, Superseded
from gateway.settings import IdentitySettings
from gateway.storage.idempotency import KeyTaken, request_key

HeldRoles = Callable[[Principal, RequestContext], frozenset[str]]
"""Roles a principal holds beyond its token: inherited, mapped or bound by policy."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an identity change, its request and its `Idempotency-Key`."""

    principal: Principal
    context: RequestContext
    idempotency_key: str | None = None

    @property
    def name(self) -> str:
        return f"{self.principal.issuer} {self.principal.subject}"


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The whole of an account's changeable part, as it shall be."""

    roles: frozenset[str]
    models: tuple[str, ...] | None
    clearance: str | None
    disabled: bool


@dataclass(frozen=True, slots=True)
class NewKey:
    name: str
    roles: frozenset[str] | None
    models: tuple[str, ...] | None
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """`text` is None when the request is a replay: a key is shown once."""

    record: ApiKeyRecord
    text: str | None


class AccountService:
    """Raises `NotPermitted` (403), `NotFound` (404), `Conflict` (409), `PreconditionFailed` (412), `Unavailable`."""

    def __init__(
        self,
        repository: IdentityRepository,
        settings: IdentitySettings,
        *,
        clock: Clock,
        ids: IdSource,
        revocations: RevocationList | None = None,
        held_roles: HeldRoles | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        pepper = settings.api_key_pepper
        self._hasher = None if pepper is None else KeyHasher(pepper.get_secret_value())
        self._repository = repository
        self._clock = clock
        self._ids = ids
        self._revocations = revocations
        self._held_roles = held_roles
        self._changed = changed

    # ------------------------------------------------------------------------------------------ accounts

    async def create(self, caller: Caller, name: str, asked: AccountChange) -> ServiceAccount:
        """The caller becomes the owner, for good; the account belongs to the caller's tenant and department."""
        request = request_key(caller.principal, caller.idempotency_key, "account", name, asked)
        known = await self._repository.store.replayed_resource(request)
        if known is not None:
            return await self.account(caller, UUID(known))
        who = caller.principal
        account = ServiceAccount(
            id=str(self._ids.uuid7()),
            tenant=who.tenant,
            name=name,
            owner_issuer=who.issuer,
            owner_subject=who.subject,
            owner_person=who.person,
            roles=asked.roles,
            department=who.department,
            clearance=asked.clearance,
            models=asked.models,
            disabled=asked.disabled,
            created_by=caller.name,
            created_at=self._clock.now(),
        )
        self._require(caller, _rights(account))
        try:
            await self._repository.add_account(account, request)
        except KeyTaken:
            raise _in_progress() from None
        except NameTaken:
            raise Conflict(
                "A service account of that name exists already.", code="name_taken", hint="choose another name"
            ) from None
        return account

    async def account(self, caller: Caller, account_id: UUID) -> ServiceAccount:
        found = await self._repository.account(caller.principal.tenant, account_id)
        if found is None:
            raise NotFound("There is no such service account.", param="account_id")
        return found

    async def accounts(self, caller: Caller, *, before: UUID | None, limit: int) -> tuple[list[ServiceAccount], int]:
        return await self._repository.accounts(caller.principal.tenant, before=before, limit=limit)

    async def owned_by(self, person: Principal) -> list[Principal]:
        """All accounts that answer to this human, whatever their tenant, with the rights their owner could give."""
        issuer, subject = person.owner or (person.issuer, person.subject)
        digest = person.person if person.owner is None else person.owner_person
        return [account_principal(account) for account in await self._repository.owned(issuer, subject, digest)]

    async def change(
        self, caller: Caller, account_id: UUID, asked: AccountChange, *, expected_version: int
    ) -> tuple[ServiceAccount, ServiceAccount]:
        """(before, after). Taking rights away needs only the permission; giving any needs to hold them all."""
        before = await self.account(caller, account_id)
        if before.version != expected_version:
            raise _stale(before)
        after = replace(
            before,
            roles=asked.roles,
            models=asked.models,
            clearance=asked.clearance,
            disabled=asked.disabled,
            version=before.version + 1,
        )
        if not _only_narrower(before, after):
            self._require(caller, _rights(after))
        if not await self._repository.change_account(after, expected_version=expected_version):
            raise _stale(await self.account(caller, account_id))
        await self._propagate()
        return before, after

    # ---------------------------------------------------------------------------------------------- keys

    async def keys(
        self, caller: Caller, account_id: UUID, *, before: UUID | None, limit: int
    ) -> tuple[list[tuple[UUID, ApiKeyRecord]], int]:
        await self.account(caller, account_id)
        return await self._repository.keys(caller.principal.tenant, account_id, before=before, limit=limit)

    async def key(self, caller: Caller, account_id: UUID, key_id: str) -> ApiKeyRecord:
        found = await self._repository.key(caller.principal.tenant, account_id, key_id)
        if found is None:
            raise NotFound("There is no such API key.", param="key_id")
        return found

    async def issue(self, caller: Caller, account_id: UUID, asked: NewKey) -> IssuedKey:
        hasher = self._demand_hasher()
        request = request_key(caller.principal, caller.idempotency_key, f"key {account_id}", asked.name, asked)
        known = await self._repository.store.replayed_resource(request)
        if known is not None:
            return IssuedKey(await self.key(caller, account_id, known), None)
        account = await self.account(caller, account_id)
        self._refuse(within(_rights(account), asked.roles, asked.models))
        now = self._clock.now()
        minted = hasher.mint()
        record = ApiKeyRecord(
            key_id=minted.key_id,
            account=account,
            digest=minted.digest,
            name=asked.name,
            roles=asked.roles,
            models=asked.models,
            created_by=caller.name,
            created_at=now,
            expires_at=now + asked.lifetime,
        )
        self._require(caller, _key_rights(record))
        try:
            await self._repository.add_key(self._ids.uuid7(), record, request)
        except KeyTaken:
            raise _in_progress() from None
        return IssuedKey(record, minted.text)

    async def rotate(
        self, caller: Caller, account_id: UUID, key_id: str, *, lifetime: timedelta, overlap: timedelta
    ) -> tuple[ApiKeyRecord, IssuedKey]:
        """(old, new): a new key with the old one's rights; the old one ends after `overlap`, or earlier on its own."""
        hasher = self._demand_hasher()
        request = request_key(
            caller.principal, caller.idempotency_key, f"rotate {account_id}", key_id, (lifetime, overlap)
        )
        old = await self.key(caller, account_id, key_id)
        known = await self._repository.store.replayed_resource(request)
        if known is not None:
            return old, IssuedKey(await self.key(caller, account_id, known), None)
        now = self._clock.now()
        if old.revoked_at is not None or old.replaced_by is not None or old.expires_at <= now:
            raise _cannot_rotate()
        minted = hasher.mint()
        record = replace(
            old,
            key_id=minted.key_id,
            digest=minted.digest,
            created_by=caller.name,
            created_at=now,
            expires_at=now + lifetime,
            last_used_at=None,
            lineage=old.lineage or old.key_id,
        )
        self._require(caller, _key_rights(record))
        ends = min(old.expires_at, now + overlap)
        try:
            await self._repository.add_key(self._ids.uuid7(), record, request, replaces=old.key_id, old_expires_at=ends)
        except KeyTaken:
            raise _in_progress() from None
        except Superseded:
            raise _cannot_rotate() from None
        await self._propagate()
        return replace(old, replaced_by=record.key_id, expires_at=ends), IssuedKey(record, minted.text)

    async def revoke_key(self, caller: Caller, account_id: UUID, key_id: str) -> ApiKeyRecord:
        """Idempotent. Everywhere within 5 s; what the key has running is stopped."""
        await self.key(caller, account_id, key_id)
        await self._repository.revoke_key(caller.principal.tenant, account_id, key_id, self._clock.now())
        await self._propagate()
        return await self.key(caller, account_id, key_id)

    # -------------------------------------------------------------------------------------------- guards

    def _require(self, caller: Caller, asked: Rights) -> None:
        held: frozenset[str] = frozenset()
        if self._held_roles is not None:
            held = self._held_roles(caller.principal, caller.context)
        self._refuse(first_objection(caller.principal, rights_of(caller.principal, held), asked))

    @staticmethod
    def _refuse(objection: Objection | None) -> None:
        if objection is not None:
            raise objection.refusal()

    def _demand_hasher(self) -> KeyHasher:
        if self._hasher is None:
            raise Unavailable(
                "API keys are not set up on this gateway.",
                code="api_keys_disabled",
                hint="an operator must set `identity.api_key_pepper`",
                retry_after_s=3600,
            )
        return self._hasher

    async def _propagate(self) -> None:
        """This replica at once; the others are told by the database."""
        if self._changed is not None:
            self._changed()
        if self._revocations is not None:
            await self._revocations.refresh()


def _rights(account: ServiceAccount) -> Rights:
    return Rights(account.roles, account.models, account.clearance, account.department)


def _key_rights(record: ApiKeyRecord) -> Rights:
    account = record.account
    return Rights(effective_roles(record), effective_models(record), account.clearance, account.department)


def _only_narrower(before: ServiceAccount, after: ServiceAccount) -> bool:
    models = after.models is not None and (before.models is None or set(after.models) <= set(before.models))
    return (
        after.roles <= before.roles
        and (models or after.models == before.models)
        and after.clearance in (None, before.clearance)
        and (after.disabled or not before.disabled)
    )


def _stale(current: ServiceAccount) -> PreconditionFailed:
    return PreconditionFailed(
        f"The service account is at version {current.version}.",
        hint="read it again, reapply your change and send its ETag",
        headers={"ETag": etag_of(current)},
    )


def etag_of(account: ServiceAccount) -> str:
    return f'"v{account.version}"'


def _cannot_rotate() -> Conflict:
    return Conflict(
        "The API key was replaced, revoked or has expired.", code="key_not_active", hint="rotate the newest key"
    )


def _in_progress() -> Conflict:
    return Conflict("A request with this `Idempotency-Key` is being served.", code="request_in_progress")
