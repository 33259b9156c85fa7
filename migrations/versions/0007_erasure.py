"""Erasure may also take single personal values out; records about the trail itself have a phase of their own.

Revision: 0007_erasure, after 0006_partitions. Reversible; on the way down records of the phase `system` stay.
"""

from __future__ import annotations

from alembic import op

revision = "0007_erasure"
down_revision = "0006_partitions"
branch_labels = None
depends_on = None

# What an administrator's record says about people goes key by key: the caller's own values stay. `seal_id` was never
# used, so nobody may set it any more.
APPEND_ONLY = """
CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    free constant text[] := ARRAY['subject', 'personal', 'personal_salt'];
BEGIN
    IF TG_OP = 'UPDATE'
       AND to_jsonb(NEW) - free = to_jsonb(OLD) - free
       AND (NEW.subject IS NULL OR NEW.subject IS NOT DISTINCT FROM OLD.subject)
       AND (NEW.personal IS NULL OR NOT EXISTS (
            SELECT FROM jsonb_each(NEW.personal) AS kept WHERE OLD.personal -> kept.key IS DISTINCT FROM kept.value))
       AND (NEW.personal_salt IS NULL OR NEW.personal_salt IS NOT DISTINCT FROM OLD.personal_salt)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = '42501';
END $$
"""

BEFORE = """
CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    free constant text[] := ARRAY['subject', 'personal', 'personal_salt', 'seal_id'];
BEGIN
    IF TG_OP = 'UPDATE'
       AND to_jsonb(NEW) - free = to_jsonb(OLD) - free
       AND (NEW.subject IS NULL OR NEW.subject IS NOT DISTINCT FROM OLD.subject)
       AND (NEW.personal IS NULL OR NEW.personal IS NOT DISTINCT FROM OLD.personal)
       AND (NEW.personal_salt IS NULL OR NEW.personal_salt IS NOT DISTINCT FROM OLD.personal_salt)
       AND (OLD.seal_id IS NULL OR NEW.seal_id IS NOT DISTINCT FROM OLD.seal_id)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = '42501';
END $$
"""

PHASES = "'intent', 'completion', 'denied', 'aggregated', 'admin', 'access'"


def upgrade() -> None:
    op.execute(APPEND_ONLY)
    op.execute("ALTER TABLE audit_event DROP CONSTRAINT ck_audit_event_phase")
    op.execute(f"ALTER TABLE audit_event ADD CONSTRAINT ck_audit_event_phase CHECK (phase IN ({PHASES}, 'system'))")
    op.execute("CREATE INDEX ix_audit_event_system ON audit_event (ts) WHERE phase = 'system'")


def downgrade() -> None:
    op.execute(BEFORE)
    op.execute("DROP INDEX ix_audit_event_system")
    op.execute("ALTER TABLE audit_event DROP CONSTRAINT ck_audit_event_phase")
    op.execute(f"ALTER TABLE audit_event ADD CONSTRAINT ck_audit_event_phase CHECK (phase IN ({PHASES})) NOT VALID")
