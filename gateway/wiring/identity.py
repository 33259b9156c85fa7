"""Identity as one replica has it: who calls, and the accounts, keys and revocations that administrators make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.flow.context import Clock, IdSource
from gateway.identity.accounts import AccountService, HeldRoles
from gateway.identity.key_source import KeySource
from gateway.identity.local_copies import IdentityCopies
from gateway.identity.repository import IdentityRepository
from gateway.identity.revocation_store import PostgresRevocationStore
from gateway.identity.revocations import RevocationList
from gateway.identity.revoking import RevocationService
from gateway.identity.service import IdentityService
from gateway.identity.store import IdentityStore
from gateway.settings import IdentitySettings


@dataclass(frozen=True, slots=True)
class IdentityParts:
    settings: IdentitySettings
    clock: Clock
    repository: IdentityRepository
    revocation_store: PostgresRevocationStore
    revocations: RevocationList
    service: IdentityService
    """To be started and closed by its owner, with the list of revocations in it."""


def identity_parts(
    engine: AsyncEngine,
    settings: IdentitySettings,
    clock: Clock,
    *,
    copies: IdentityCopies | None = None,
    key_sources: Mapping[str, KeySource] | None = None,
    listen: bool = True,
) -> IdentityParts:
    """`key_sources` replace those of the providers; without `listen` changes elsewhere are seen by polling alone."""
    store = IdentityStore(engine)
    repository, revocation_store = IdentityRepository(store), PostgresRevocationStore(store)
    revocations = RevocationList(
        revocation_store, settings, clock, listen_url=store.database_url if listen else None, copy=copies
    )
    service = IdentityService(
        settings,
        clock=clock,
        key_sources=key_sources,
        keys=repository if settings.api_key_pepper is not None else None,
        revocations=revocations,
        copies=copies,
    )
    return IdentityParts(settings, clock, repository, revocation_store, revocations, service)


def account_service(parts: IdentityParts, ids: IdSource, held_roles: HeldRoles | None = None) -> AccountService:
    return AccountService(
        parts.repository,
        parts.settings,
        clock=parts.clock,
        ids=ids,
        revocations=parts.revocations,
        held_roles=held_roles,
        changed=parts.service.forget,
    )


def revocation_service(parts: IdentityParts, ids: IdSource) -> RevocationService:
    return RevocationService(parts.revocation_store, parts.revocations, clock=parts.clock, ids=ids)
