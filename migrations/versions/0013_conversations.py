"""Conversations that are kept for their owner; what is said in one goes with it.

Revision: 0013_conversations, after 0012_responses. Reversible; the way down destroys all conversations.
"""

from __future__ import annotations

from alembic import op

revision = "0013_conversations"
down_revision = "0012_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE stored_conversation (
    id uuid NOT NULL,
    tenant text NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    key_id text NOT NULL,
    salt bytea NOT NULL,
    envelope bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_stored_conversation PRIMARY KEY (id)
)""")
    op.execute("CREATE INDEX ix_stored_conversation_owner ON stored_conversation (tenant, issuer, subject)")
    op.execute("CREATE INDEX ix_stored_conversation_expires_at ON stored_conversation (expires_at)")
    op.execute("""
ALTER TABLE stored_response ADD COLUMN conversation uuid
    CONSTRAINT fk_stored_response_conversation REFERENCES stored_conversation (id) ON DELETE CASCADE""")
    op.execute("CREATE INDEX ix_stored_response_conversation ON stored_response (conversation)")


def downgrade() -> None:
    op.execute("DELETE FROM stored_response WHERE conversation IS NOT NULL")
    op.execute("ALTER TABLE stored_response DROP COLUMN conversation")
    op.execute("DROP TABLE stored_conversation")
