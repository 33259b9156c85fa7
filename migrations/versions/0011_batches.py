"""Files of callers in chunks, batches, and one row for each line of a batch.

Revision: 0011_batches, after 0010_idempotency. Reversible; going back deletes what callers have stored.
"""

from __future__ import annotations

from alembic import op

revision = "0011_batches"
down_revision = "0010_idempotency"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE stored_file (
    id text NOT NULL,
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    purpose text NOT NULL,
    filename text NOT NULL,
    bytes bigint NOT NULL,
    lines integer NOT NULL,
    ready boolean NOT NULL,
    batch_id text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_stored_file PRIMARY KEY (id)
)""")
    op.execute("CREATE INDEX ix_stored_file_owner ON stored_file (tenant, issuer, subject, id)")
    op.execute("CREATE INDEX ix_stored_file_expires_at ON stored_file (expires_at)")
    op.execute("""
CREATE TABLE stored_chunk (
    file_id text NOT NULL,
    number integer NOT NULL,
    content bytea NOT NULL,
    key_id text,
    salt bytea,
    CONSTRAINT pk_stored_chunk PRIMARY KEY (file_id, number),
    CONSTRAINT fk_stored_chunk_file_id_stored_file FOREIGN KEY (file_id) REFERENCES stored_file (id) ON DELETE CASCADE
)""")
    op.execute("""
CREATE TABLE batch (
    id text NOT NULL,
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    input_file_id text NOT NULL,
    endpoint text NOT NULL,
    model text,
    status text NOT NULL,
    metadata jsonb NOT NULL,
    errors jsonb NOT NULL,
    principal jsonb NOT NULL,
    origin jsonb NOT NULL,
    total integer NOT NULL DEFAULT 0,
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    output_file_id text,
    error_file_id text,
    keep_s integer NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    times jsonb NOT NULL,
    ended_at timestamptz,
    claimed_at timestamptz,
    resume_at timestamptz,
    CONSTRAINT pk_batch PRIMARY KEY (id)
)""")
    op.execute("CREATE INDEX ix_batch_owner ON batch (tenant, issuer, subject, id)")
    op.execute("CREATE INDEX ix_batch_open ON batch (status) WHERE ended_at IS NULL")
    op.execute("""
CREATE TABLE batch_line (
    batch_id text NOT NULL,
    number integer NOT NULL,
    custom_id text NOT NULL,
    start bigint NOT NULL,
    size integer NOT NULL,
    state text NOT NULL,
    attempts smallint NOT NULL DEFAULT 0,
    lease_id uuid,
    lease_until timestamptz,
    result bytea,
    result_bytes integer NOT NULL DEFAULT 0,
    key_id text,
    salt bytea,
    CONSTRAINT pk_batch_line PRIMARY KEY (batch_id, number),
    CONSTRAINT uq_batch_line_batch_id_custom_id UNIQUE (batch_id, custom_id),
    CONSTRAINT fk_batch_line_batch_id_batch FOREIGN KEY (batch_id) REFERENCES batch (id) ON DELETE CASCADE
)""")
    op.execute("CREATE INDEX ix_batch_line_open ON batch_line (batch_id, number) WHERE state IN ('pending', 'running')")


def downgrade() -> None:
    op.execute("DROP TABLE batch_line")
    op.execute("DROP TABLE batch")
    op.execute("DROP TABLE stored_chunk")
    op.execute("DROP TABLE stored_file")
