"""Who is behind a change and behind a key: all names of a policy's author, the person of an owner, a key's lineage.

Revision: 0005_people, after 0004_content. Keys of before are given the lineage of the key that they replaced.
Reversible; the way down forgets these names.
"""

from __future__ import annotations

from alembic import op

revision = "0005_people"
down_revision = "0004_content"
branch_labels = None
depends_on = None

LINEAGE = """
WITH RECURSIVE chain AS (
    SELECT key_id, key_id AS lineage FROM identity_api_key k
    WHERE NOT EXISTS (SELECT 1 FROM identity_api_key old WHERE old.replaced_by = k.key_id)
    UNION ALL
    SELECT next.key_id, chain.lineage FROM chain
    JOIN identity_api_key old ON old.key_id = chain.key_id
    JOIN identity_api_key next ON next.key_id = old.replaced_by
)
UPDATE identity_api_key SET lineage = chain.lineage FROM chain WHERE chain.key_id = identity_api_key.key_id
"""


def upgrade() -> None:
    for table in ("policy_version", "policy_proposal"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN author_people text[] NOT NULL DEFAULT '{{}}'")
    op.execute("ALTER TABLE identity_service_account ADD COLUMN owner_person text")
    op.execute("ALTER TABLE identity_api_key ADD COLUMN lineage text")
    op.execute(LINEAGE)


def downgrade() -> None:
    op.execute("ALTER TABLE identity_api_key DROP COLUMN lineage")
    op.execute("ALTER TABLE identity_service_account DROP COLUMN owner_person")
    for table in ("policy_version", "policy_proposal"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN author_people")
