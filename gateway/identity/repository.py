"""All SQL of service accounts and API keys. Moves rows; decides nothing. Every read is bound to a tenant.

The exceptions are `find_key` and `find_keys`, which authentication calls before it can know a tenant, by the key's id,
and `owned`: the policy is one for all tenants, and so is the rule that nobody grants to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import and_, bindparam, func, insert, or_, select, update

from gateway.identity.api_keys import ApiKeyRecord, ServiceAccount
from gateway.identity.store import IdentityStore, Superseded
from gateway.identity.tables import api_key, service_account
from gateway.storage.idempotency import RequestKey


class IdentityRepository:
    """Implements `ApiKeyRepository`. Raises `Unavailable`, `KeyTaken`, `NameTaken`, `Superseded`."""

    def __init__(self, store: IdentityStore) -> None:
        self.store = store

    # ----------------------------------------------------------------------------------------- accounts

    async def add_account(self, account: ServiceAccount, request: RequestKey | None) -> None:
        values = {
            "id": UUID(account.id),
            "tenant": account.tenant,
            "name": account.name,
            "owner_issuer": account.owner_issuer,
            "owner_subject": account.owner_subject,
            "owner_person": account.owner_person,
            "created_by": account.created_by,
            "created_at": account.created_at,
            **_rights(account),
        }
        async with self.store.write(request, account.id) as connection:
            await connection.execute(insert(service_account).values(**values))

    async def change_account(self, account: ServiceAccount, *, expected_version: int) -> bool:
        """Write rights and `disabled` if nobody did since `expected_version`."""
        statement = (
            update(service_account)
            .where(
                service_account.c.id == UUID(account.id),
                service_account.c.tenant == account.tenant,
                service_account.c.version == expected_version,
            )
            .values(version=expected_version + 1, **_rights(account))
        )
        async with self.store.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def account(self, tenant: str, account_id: UUID) -> ServiceAccount | None:
        query = select(service_account).where(service_account.c.id == account_id, service_account.c.tenant == tenant)
        async with self.store.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _account(row)

    async def accounts(self, tenant: str, *, before: UUID | None, limit: int) -> tuple[list[ServiceAccount], int]:
        """Newest first, older than `before`; with the number of all accounts of the tenant."""
        query = select(service_account).where(service_account.c.tenant == tenant)
        if before is not None:
            query = query.where(service_account.c.id < before)
        count = select(func.count()).select_from(service_account).where(service_account.c.tenant == tenant)
        async with self.store.read() as connection:
            rows = (await connection.execute(query.order_by(service_account.c.id.desc()).limit(limit))).mappings().all()
            total = await connection.scalar(count)
        return [_account(row) for row in rows], total or 0

    async def owned(self, issuer: str, subject: str, person: str | None) -> list[ServiceAccount]:
        """Accounts of one human in every tenant, by the identity that made them or by the person behind it."""
        mine = and_(service_account.c.owner_issuer == issuer, service_account.c.owner_subject == subject)
        if person is not None:
            mine = or_(mine, service_account.c.owner_person == person)
        query = select(service_account).where(mine).order_by(service_account.c.id)
        async with self.store.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [_account(row) for row in rows]

    # --------------------------------------------------------------------------------------------- keys

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        async with self.store.read() as connection:
            row = (await connection.execute(_keys().where(api_key.c.key_id == key_id))).mappings().first()
        return None if row is None else _key(row)

    async def find_keys(self, key_ids: Sequence[str]) -> list[ApiKeyRecord]:
        async with self.store.read() as connection:
            rows = (await connection.execute(_keys().where(api_key.c.key_id.in_(key_ids)))).mappings().all()
        return [_key(row) for row in rows]

    async def key(self, tenant: str, account_id: UUID, key_id: str) -> ApiKeyRecord | None:
        query = _keys().where(
            api_key.c.key_id == key_id, api_key.c.account_id == account_id, api_key.c.tenant == tenant
        )
        async with self.store.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _key(row)

    async def keys(
        self, tenant: str, account_id: UUID, *, before: UUID | None, limit: int
    ) -> tuple[list[tuple[UUID, ApiKeyRecord]], int]:
        """Newest first with their row ids, older than `before`; with the number of all keys of the account."""
        mine = (api_key.c.account_id == account_id, api_key.c.tenant == tenant)
        query = _keys().where(*mine)
        if before is not None:
            query = query.where(api_key.c.id < before)
        async with self.store.read() as connection:
            rows = (await connection.execute(query.order_by(api_key.c.id.desc()).limit(limit))).mappings().all()
            total = await connection.scalar(select(func.count()).select_from(api_key).where(*mine))
        return [(row["id"], _key(row)) for row in rows], total or 0

    async def add_key(
        self,
        row_id: UUID,
        record: ApiKeyRecord,
        request: RequestKey | None,
        *,
        replaces: str | None = None,
        old_expires_at: datetime | None = None,
    ) -> None:
        """Insert a key; with `replaces`, let the old one end at `old_expires_at`.

        Raises `Superseded`, and writes nothing, when the old one was replaced or revoked meanwhile.
        """
        values = {
            "id": row_id,
            "key_id": record.key_id,
            "account_id": UUID(record.account.id),
            "tenant": record.account.tenant,
            "digest": record.digest,
            "name": record.name,
            "roles": None if record.roles is None else sorted(record.roles),
            "models": None if record.models is None else list(record.models),
            "created_by": record.created_by,
            "created_at": record.created_at,
            "expires_at": record.expires_at,
            "lineage": record.lineage or record.key_id,
        }
        async with self.store.write(request, record.key_id) as connection:
            if replaces is not None:
                statement = (
                    update(api_key)
                    .where(
                        api_key.c.key_id == replaces,
                        api_key.c.account_id == UUID(record.account.id),
                        api_key.c.replaced_by.is_(None),
                        api_key.c.revoked_at.is_(None),
                    )
                    .values(replaced_by=record.key_id, expires_at=old_expires_at)
                )
                if (await connection.execute(statement)).rowcount != 1:
                    raise Superseded
            await connection.execute(insert(api_key).values(**values))

    async def revoke_key(self, tenant: str, account_id: UUID, key_id: str, at: datetime) -> bool:
        """False when there is no such key, or it was revoked before."""
        statement = (
            update(api_key)
            .where(
                api_key.c.key_id == key_id,
                api_key.c.account_id == account_id,
                api_key.c.tenant == tenant,
                api_key.c.revoked_at.is_(None),
            )
            .values(revoked_at=at)
        )
        async with self.store.write() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def mark_used(self, used: dict[str, datetime]) -> None:
        statement = (
            update(api_key)
            .where(api_key.c.key_id == bindparam("used_key"))
            .values(last_used_at=func.greatest(func.coalesce(api_key.c.last_used_at, bindparam("at")), bindparam("at")))
        )
        async with self.store.quiet_write() as connection:
            await connection.execute(statement, [{"used_key": key, "at": at} for key, at in sorted(used.items())])


def _keys() -> Any:
    account = [column.label(f"svc_{column.name}") for column in service_account.c]
    return select(api_key, *account).join(service_account, service_account.c.id == api_key.c.account_id)


def _rights(account: ServiceAccount) -> dict[str, Any]:
    return {
        "roles": sorted(account.roles),
        "department": account.department,
        "clearance": account.clearance,
        "models": None if account.models is None else list(account.models),
        "disabled": account.disabled,
    }


def _account(row: Mapping[Any, Any], prefix: str = "") -> ServiceAccount:
    models = row[f"{prefix}models"]
    return ServiceAccount(
        id=str(row[f"{prefix}id"]),
        tenant=row[f"{prefix}tenant"],
        name=row[f"{prefix}name"],
        owner_issuer=row[f"{prefix}owner_issuer"],
        owner_subject=row[f"{prefix}owner_subject"],
        roles=frozenset(row[f"{prefix}roles"]),
        department=row[f"{prefix}department"],
        clearance=row[f"{prefix}clearance"],
        models=None if models is None else tuple(models),
        disabled=row[f"{prefix}disabled"],
        created_by=row[f"{prefix}created_by"],
        created_at=row[f"{prefix}created_at"],
        version=row[f"{prefix}version"],
        owner_person=row[f"{prefix}owner_person"],
    )


def _key(row: Mapping[Any, Any]) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=row["key_id"],
        account=_account(row, "svc_"),
        digest=bytes(row["digest"]),
        name=row["name"],
        roles=None if row["roles"] is None else frozenset(row["roles"]),
        models=None if row["models"] is None else tuple(row["models"]),
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        replaced_by=row["replaced_by"],
        lineage=row["lineage"] or "",
    )
