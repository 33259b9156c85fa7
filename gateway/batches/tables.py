"""The tables of files and batches as SQLAlchemy sees them. Knows no queries.

In Postgres, not in a folder: every node reads them, a backup has them whole, erasing a person is one transaction, and a
result is written in the same transaction as the state of its line.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gateway.storage.base import metadata

_OPEN = sa.text("state IN ('pending', 'running')")


def _moment(name: str, *, required: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not required)


def _owner() -> tuple[sa.Column[object], ...]:
    return tuple(sa.Column(name, sa.Text, nullable=False) for name in ("tenant", "issuer", "subject"))


stored_file = sa.Table(
    "stored_file",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *_owner(),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.Integer, nullable=False),
    sa.Column("ready", sa.Boolean, nullable=False),
    sa.Column("batch_id", sa.Text),
    _moment("created_at", required=True),
    _moment("expires_at", required=True),
    sa.Index("ix_stored_file_owner", "tenant", "issuer", "subject", "id"),
    sa.Index("ix_stored_file_expires_at", "expires_at"),
)
"""`batch_id`: the file has no chunks, but the results of that batch."""

stored_chunk = sa.Table(
    "stored_chunk",
    metadata,
    sa.Column("file_id", sa.Text, sa.ForeignKey("stored_file.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.Text),
    sa.Column("salt", sa.LargeBinary),
)

batch = sa.Table(
    "batch",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *_owner(),
    sa.Column("input_file_id", sa.Text, nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("metadata", pg.JSONB, nullable=False),
    sa.Column("errors", pg.JSONB, nullable=False),
    sa.Column("principal", pg.JSONB, nullable=False),
    sa.Column("origin", pg.JSONB, nullable=False),
    sa.Column("total", sa.Integer, nullable=False, server_default="0"),
    sa.Column("completed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("output_file_id", sa.Text),
    sa.Column("error_file_id", sa.Text),
    sa.Column("keep_s", sa.Integer, nullable=False),
    _moment("created_at", required=True),
    _moment("expires_at", required=True),
    sa.Column("times", pg.JSONB, nullable=False),
    _moment("ended_at"),
    _moment("claimed_at"),
    _moment("resume_at"),
    sa.Index("ix_batch_owner", "tenant", "issuer", "subject", "id"),
    sa.Index("ix_batch_open", "status", postgresql_where=sa.text("ended_at IS NULL")),
)

batch_line = sa.Table(
    "batch_line",
    metadata,
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batch.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("custom_id", sa.Text, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("lease_id", sa.Uuid),
    _moment("lease_until"),
    sa.Column("result", sa.LargeBinary),
    sa.Column("result_bytes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("key_id", sa.Text),
    sa.Column("salt", sa.LargeBinary),
    sa.UniqueConstraint("batch_id", "custom_id"),
    sa.Index("ix_batch_line_open", "batch_id", "number", postgresql_where=_OPEN),
)
"""`start` and `size`: where its bytes are in the input file. `state`: pending, running, done, failed, unrun."""
