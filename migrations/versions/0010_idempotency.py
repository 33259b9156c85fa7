"""One table for the idempotency keys of every domain; those of policy writes and of identity had a table each.

Revision: 0010_idempotency, after 0009_filters. Reversible. Keys are remembered for two days and are not carried over: a
request that is repeated across the upgrade takes effect again, as one with a fresh key does.
"""

from __future__ import annotations

from alembic import op

revision = "0010_idempotency"
down_revision = "0009_filters"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DROP TABLE policy_idempotency")
    op.execute("DROP TABLE identity_idempotency")
    op.execute("""
CREATE TABLE idempotent_request (
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    key text NOT NULL,
    request_sha256 text NOT NULL,
    resource text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_idempotent_request PRIMARY KEY (tenant, issuer, subject, key)
)""")


def downgrade() -> None:
    op.execute("DROP TABLE idempotent_request")
    op.execute("""
CREATE TABLE identity_idempotency (
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    key text NOT NULL,
    request_sha256 text NOT NULL,
    resource text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_identity_idempotency PRIMARY KEY (tenant, issuer, subject, key)
)""")
    op.execute("""
CREATE TABLE policy_idempotency (
    key text NOT NULL,
    author_issuer text NOT NULL,
    author_subject text NOT NULL,
    request_sha256 text NOT NULL,
    version integer,
    proposal uuid,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_policy_idempotency PRIMARY KEY (author_issuer, author_subject, key)
)""")
