"""The role of the running gateway need not own the tables: what only an owner may do is a function that it may call.

Revision: 0008_roles, after 0007_erasure. Reversible.
"""

from __future__ import annotations

from alembic import op

revision = "0008_roles"
down_revision = "0007_erasure"
branch_labels = None
depends_on = None

# The floor is the law's (AI Act, articles 19 and 26): whoever may call this can still remove nothing younger.
DROP_EXPIRED = """
CREATE FUNCTION audit_drop_expired(part text, before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    upto timestamptz;
    removed bigint := 0;
BEGIN
    IF before > now() - interval '183 days' THEN
        RAISE EXCEPTION 'audit records are kept for 183 days at least' USING ERRCODE = '42501';
    END IF;
    IF part = 'audit_quarantine' THEN
        DELETE FROM audit_quarantine WHERE quarantined_at < before;
        GET DIAGNOSTICS removed = ROW_COUNT;
        RETURN removed;
    END IF;
    IF part !~ '^audit_event_[0-9]{4}_[0-9]{2}$' OR NOT EXISTS (
        SELECT FROM pg_inherits WHERE inhparent = 'audit_event'::regclass AND inhrelid = to_regclass(part)) THEN
        RAISE EXCEPTION '% is no partition of the audit trail', part USING ERRCODE = '42704';
    END IF;
    upto := (to_date(right(part, 7), 'YYYY_MM')::timestamp + interval '1 month') AT TIME ZONE 'UTC';
    IF upto > before THEN
        RAISE EXCEPTION '% holds records that are kept', part USING ERRCODE = '42501';
    END IF;
    EXECUTE format('SELECT count(*) FROM %I', part) INTO removed;
    EXECUTE format('DROP TABLE %I', part);
    RETURN removed;
END $$
"""

# pg_temp last: nobody may put a table of the same name in front.
OWNED = """
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'audit_ensure_partitions(integer, timestamptz)', 'audit_drop_expired(text, timestamptz)'
    ] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_catalog, pg_temp',
            name, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', name);
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(DROP_EXPIRED)
    op.execute(OWNED)
    op.execute("ALTER FUNCTION audit_drop_expired(text, timestamptz) SET lock_timeout = '5s'")


def downgrade() -> None:
    op.execute("DROP FUNCTION audit_drop_expired(text, timestamptz)")
    op.execute("ALTER FUNCTION audit_ensure_partitions(integer, timestamptz) SECURITY INVOKER RESET search_path")
    op.execute("GRANT EXECUTE ON FUNCTION audit_ensure_partitions(integer, timestamptz) TO PUBLIC")
