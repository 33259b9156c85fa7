"""The audit tables as SQLAlchemy sees them, and the order of columns that the shipper copies. Knows no queries."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gateway.storage.base import metadata

audit_event = sa.Table(
    "audit_event",
    metadata,
    sa.Column("ts", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("event_id", sa.Uuid, primary_key=True),
    sa.Column("request_id", sa.Uuid, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("schema_version", sa.SmallInteger, nullable=False),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("boot_id", sa.Uuid, nullable=False),
    sa.Column("node_seq", sa.BigInteger, nullable=False),
    sa.Column("ingested_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("subject", sa.Text),
    sa.Column("personal", pg.JSONB),
    sa.Column("personal_salt", sa.LargeBinary),
    sa.Column("principal_type", sa.Text, nullable=False),
    sa.Column("client_id", sa.Text),
    sa.Column("department", sa.Text),
    sa.Column("roles", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("credential_id", sa.Text),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("action", sa.Text),
    sa.Column("target", sa.Text),
    sa.Column("stream", sa.Boolean),
    sa.Column("model_requested", sa.Text),
    sa.Column("model_resolved", sa.Text),
    sa.Column("model_served", sa.Text),
    sa.Column("decision", sa.Text, nullable=False),
    sa.Column("deny_code", sa.Text),
    sa.Column("policy_version", sa.Integer),
    sa.Column("rule_id", sa.Text),
    sa.Column("route_reason", sa.Text),
    sa.Column("http_status", sa.SmallInteger),
    sa.Column("error_code", sa.Text),
    sa.Column("finish_reason", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("tokens_in", sa.Integer),
    sa.Column("tokens_out", sa.Integer),
    sa.Column("tokens_cached", sa.Integer),
    sa.Column("cost_micro", sa.BigInteger),
    sa.Column("currency", sa.Text),
    sa.Column("total_us", sa.BigInteger),
    sa.Column("ttft_us", sa.BigInteger),
    sa.Column("rec", sa.LargeBinary, nullable=False),
    sa.Column("prev_hash", sa.LargeBinary, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("seal_id", sa.BigInteger),
    sa.Index("ix_audit_event_ts_brin", "ts", postgresql_using="brin"),
    sa.Index("ix_audit_event_tenant_ts", "tenant", sa.text("ts DESC"), "event_id"),
    sa.Index("ix_audit_event_subject_ts", "subject", "ts"),
    sa.Index("ix_audit_event_model_served_ts", "model_served", "ts"),
    sa.Index("ix_audit_event_refused", "ts", postgresql_where=sa.text("decision <> 'allow'")),
    sa.Index("ix_audit_event_system", "ts", postgresql_where=sa.text("phase = 'system'")),
    sa.Index("ix_audit_event_request_id", "request_id"),
    sa.Index("ix_audit_event_client_ts", "client_id", "ts"),
    sa.Index("ix_audit_event_department_ts", "department", "ts"),
    sa.Index("ix_audit_event_model_requested_ts", "model_requested", "ts"),
    sa.Index("ix_audit_event_outcome_ts", "outcome", "ts", postgresql_where=sa.text("outcome <> 'ok'")),
    sa.Index("ix_audit_event_status_ts", "http_status", "ts", postgresql_where=sa.text("http_status <> 200")),
    sa.Index(
        "ix_audit_event_labels",
        sa.text("(personal -> 'labels') jsonb_path_ops"),
        postgresql_using="gin",
        postgresql_where=sa.text("personal ? 'labels'"),
    ),
    sa.Index("ix_audit_event_chain", "boot_id", "node_seq"),
    sa.Index("ix_audit_event_ingested_at", "ingested_at", "event_id"),
    postgresql_partition_by="RANGE (ts)",
)

audit_content = sa.Table(
    "audit_content",
    metadata,
    sa.Column("event_id", sa.Uuid, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Uuid, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("ciphertext", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Index("ix_audit_content_expires_at", "expires_at"),
    sa.Index("ix_audit_content_request_id", "request_id"),
)

audit_quarantine = sa.Table(
    "audit_quarantine",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("quarantined_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("boot_id", sa.Uuid, nullable=False),
    sa.Column("node_seq", sa.BigInteger, nullable=False),
    sa.Column("rec", sa.LargeBinary, nullable=False),
    sa.Column("prev_hash", sa.LargeBinary, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("side", sa.LargeBinary),
    sa.Column("error", sa.Text, nullable=False),
    sa.UniqueConstraint("boot_id", "node_seq"),
)


def plain(row: sa.RowMapping) -> dict[str, Any]:
    """Built-in kinds of text and UUID: the drivers' own subclasses of both are refused by serializers."""
    return {str(name): UUID(int=value.int) if isinstance(value, UUID) else value for name, value in row.items()}
