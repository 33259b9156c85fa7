"""All SQL of revocations. Implements `RevocationStore`; decides nothing.

What is no longer trusted is read as one list: entries made by administrators, revoked keys that have not expired,
disabled accounts, and accounts whose owner is revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import and_, func, insert, literal, or_, select, update

from gateway.identity.api_keys import ISSUER
from gateway.identity.revocations import Revocation
from gateway.identity.store import IdentityStore
from gateway.identity.tables import api_key, revocation, service_account
from gateway.storage.idempotency import RequestKey


class PostgresRevocationStore:
    """Raises `Unavailable` and `KeyTaken`."""

    def __init__(self, store: IdentityStore) -> None:
        self.store = store

    async def active_revocations(self, now: datetime) -> tuple[Revocation, ...]:
        active = and_(
            revocation.c.lifted_at.is_(None), or_(revocation.c.expires_at.is_(None), revocation.c.expires_at > now)
        )
        owner_revoked = (
            select(literal(1))
            .where(
                active,
                revocation.c.kind == "subject",
                revocation.c.tenant == service_account.c.tenant,
                revocation.c.issuer == service_account.c.owner_issuer,
                revocation.c.subject == service_account.c.owner_subject,
            )
            .exists()
        )
        accounts = select(service_account).where(or_(service_account.c.disabled, owner_revoked))
        keys = select(api_key).where(api_key.c.revoked_at.is_not(None), api_key.c.expires_at > now)
        async with self.store.read() as connection:
            entries = [_read(row) for row in (await connection.execute(select(revocation).where(active))).mappings()]
            entries += [_account(row) for row in (await connection.execute(accounts)).mappings()]
            entries += [_key(row) for row in (await connection.execute(keys)).mappings()]
        return tuple(entries)

    async def add(self, entry: Revocation, request: RequestKey | None) -> None:
        values = {
            "id": UUID(entry.id),
            "tenant": entry.tenant,
            "kind": entry.kind,
            "issuer": entry.issuer,
            "subject": entry.subject,
            "credential_id": entry.credential_id,
            "issued_before": entry.issued_before,
            "reason": entry.reason,
            "created_by": entry.created_by,
            "created_at": entry.created_at,
            "expires_at": entry.expires_at,
        }
        async with self.store.write(request, entry.id) as connection:
            await connection.execute(insert(revocation).values(**values))

    async def get(self, tenant: str, revocation_id: UUID) -> Revocation | None:
        query = select(revocation).where(revocation.c.id == revocation_id, revocation.c.tenant == tenant)
        async with self.store.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _read(row)

    async def page(
        self, tenant: str, *, before: UUID | None, limit: int, active_at: datetime | None
    ) -> tuple[list[Revocation], int]:
        """Newest first, older than `before`; with `active_at`, only those in force then. And the number of all."""
        wanted = [revocation.c.tenant == tenant]
        if active_at is not None:
            wanted.append(revocation.c.lifted_at.is_(None))
            wanted.append(or_(revocation.c.expires_at.is_(None), revocation.c.expires_at > active_at))
        query = select(revocation).where(*wanted)
        if before is not None:
            query = query.where(revocation.c.id < before)
        async with self.store.read() as connection:
            rows = (await connection.execute(query.order_by(revocation.c.id.desc()).limit(limit))).mappings().all()
            total = await connection.scalar(select(func.count()).select_from(revocation).where(*wanted))
        return [_read(row) for row in rows], total or 0

    async def lift(self, tenant: str, revocation_id: UUID, *, by: str, at: datetime) -> bool:
        """False when there is no such entry, or it was lifted before."""
        statement = (
            update(revocation)
            .where(
                revocation.c.id == revocation_id,
                revocation.c.tenant == tenant,
                revocation.c.lifted_at.is_(None),
            )
            .values(lifted_at=at, lifted_by=by)
        )
        async with self.store.write() as connection:
            return (await connection.execute(statement)).rowcount == 1


def _read(row: Mapping[Any, Any]) -> Revocation:
    return Revocation(
        id=str(row["id"]),
        kind=row["kind"],
        tenant=row["tenant"],
        issuer=row["issuer"],
        subject=row["subject"],
        credential_id=row["credential_id"],
        issued_before=row["issued_before"],
        reason=row["reason"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        lifted_at=row["lifted_at"],
    )


def _account(row: Mapping[Any, Any]) -> Revocation:
    reason = "account disabled" if row["disabled"] else "owner revoked"
    return Revocation(
        id=f"account:{row['id']}",
        kind="subject",
        tenant=row["tenant"],
        issuer=ISSUER,
        subject=str(row["id"]),
        credential_id=None,
        issued_before=None,
        reason=reason,
        created_by=row["created_by"],
        created_at=row["created_at"],
    )


def _key(row: Mapping[Any, Any]) -> Revocation:
    return Revocation(
        id=f"key:{row['key_id']}",
        kind="credential",
        tenant=row["tenant"],
        issuer=ISSUER,
        subject=None,
        credential_id=row["key_id"],
        issued_before=None,
        reason="key revoked",
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
