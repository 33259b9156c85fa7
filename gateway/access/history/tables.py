"""Tables of the policy history. One policy governs the whole installation, so they are global: no tenant column."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
)

from gateway.storage.base import metadata


def _content() -> tuple[Column[Any], ...]:
    """`versions.NewVersion`, which a version and a proposal hold alike. Fresh columns for each table."""
    return (
        Column("sha256", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("syntax", Text, nullable=False),
        Column("known_models", ARRAY(Text), nullable=False),
        Column("author_tenant", Text, nullable=False),
        Column("author_issuer", Text, nullable=False),
        Column("author_subject", Text, nullable=False),
        Column("author_display", Text),
        Column("author_people", ARRAY(Text), nullable=False, server_default="{}"),
        Column("reason", Text, nullable=False, server_default=""),
        Column("origin", Text, nullable=False),
        Column("restored_from", Integer),
    )


policy_version = Table(
    "policy_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    *_content(),
    Column("approver_tenant", Text),
    Column("approver_issuer", Text),
    Column("approver_subject", Text),
    Column("approver_display", Text),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    CheckConstraint("syntax IN ('yaml', 'json')", name="syntax"),
    CheckConstraint("origin IN ('seed', 'change', 'restore', 'binding')", name="origin"),
    CheckConstraint("version >= 1", name="version"),
)

policy_head = Table(
    "policy_head",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, ForeignKey("policy_version.version"), nullable=False),
    CheckConstraint("id = 1", name="single"),
)

policy_proposal = Table(
    "policy_proposal",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("base_version", Integer, nullable=False),
    *_content(),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("decided_tenant", Text),
    Column("decided_issuer", Text),
    Column("decided_subject", Text),
    Column("decided_display", Text),
    Column("decided_at", DateTime(timezone=True)),
    Column("version", Integer, ForeignKey("policy_version.version")),
    CheckConstraint("state IN ('pending', 'approved', 'rejected')", name="state"),
)
