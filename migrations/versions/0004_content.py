"""Encrypted prompts and answers: whose they are and of which request, so that they can be found, read and erased.

Revision: 0004_content, after 0003_identity. The table was empty until now. Reversible; the way down destroys all
recorded content, which the records themselves survive.
"""

from __future__ import annotations

from alembic import op

revision = "0004_content"
down_revision = "0003_identity"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE audit_content ADD COLUMN request_id uuid NOT NULL, ADD COLUMN tenant text NOT NULL")
    op.execute("CREATE INDEX ix_audit_content_request_id ON audit_content (request_id)")


def downgrade() -> None:
    op.execute("DELETE FROM audit_content")
    op.execute("DROP INDEX ix_audit_content_request_id")
    op.execute("ALTER TABLE audit_content DROP COLUMN request_id, DROP COLUMN tenant")
