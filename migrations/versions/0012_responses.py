"""Responses that are kept for their owner, encrypted, until their time is over.

Revision: 0012_responses, after 0011_batches. Reversible; the way down destroys all kept responses.
"""

from __future__ import annotations

from alembic import op

revision = "0012_responses"
down_revision = "0011_batches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE stored_response (
    id uuid NOT NULL,
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    previous uuid,
    key_id text NOT NULL,
    salt bytea NOT NULL,
    envelope bytea NOT NULL,
    size integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_stored_response PRIMARY KEY (id)
)""")
    op.execute("CREATE INDEX ix_stored_response_owner ON stored_response (tenant, issuer, subject)")
    op.execute("CREATE INDEX ix_stored_response_expires_at ON stored_response (expires_at)")


def downgrade() -> None:
    op.execute("DROP TABLE stored_response")
