"""Tables of service accounts, their keys and revocations. Every one is bound to a tenant."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)

from gateway.storage.base import metadata

service_account = Table(
    "identity_service_account",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner_issuer", Text, nullable=False),
    Column("owner_subject", Text, nullable=False),
    Column("owner_person", Text),
    Column("roles", ARRAY(Text), nullable=False),
    Column("department", Text),
    Column("clearance", Text),
    Column("models", ARRAY(Text)),
    Column("disabled", Boolean, nullable=False, server_default=text("false")),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    UniqueConstraint("tenant", "name"),
)

api_key = Table(
    "identity_api_key",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("key_id", Text, nullable=False, unique=True),
    Column("account_id", Uuid, ForeignKey("identity_service_account.id"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("roles", ARRAY(Text)),
    Column("models", ARRAY(Text)),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("replaced_by", Text),
    Column("lineage", Text),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index("ix_identity_api_key_account_id", "account_id"),
)

revocation = Table(
    "identity_revocation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("issuer", Text),
    Column("subject", Text),
    Column("credential_id", Text),
    Column("issued_before", DateTime(timezone=True)),
    Column("reason", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("expires_at", DateTime(timezone=True)),
    Column("lifted_at", DateTime(timezone=True)),
    Column("lifted_by", Text),
    CheckConstraint("kind IN ('credential', 'subject', 'issued_before')", name="kind"),
    Index("ix_identity_revocation_tenant_id", "tenant", "id"),
)
