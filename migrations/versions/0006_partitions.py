"""Partitions can be made although rows of their month lie in the default partition, where a wrong clock put them.

Revision: 0006_partitions, after 0005_people. Reversible.
"""

from __future__ import annotations

from alembic import op

revision = "0006_partitions"
down_revision = "0005_people"
branch_labels = None
depends_on = None

# Rows cannot be deleted from the default partition (the trail is append-only) and a partition cannot be made while
# they are there. So the default partition is taken off, whole, a new one is made, and the rows are inserted again:
# each goes where it belongs. One transaction; a reader sees all of them before and after.
PARTITIONS = """
CREATE OR REPLACE FUNCTION audit_ensure_partitions(months_ahead integer, at timestamptz DEFAULT now())
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    month timestamp := date_trunc('month', at AT TIME ZONE 'UTC');
    name text;
    made integer := 0;
    stray boolean := false;
    upto timestamp := month + make_interval(months => months_ahead + 1);
BEGIN
    PERFORM pg_advisory_xact_lock(4919131752989213764);
    -- Asked first, because taking the default partition off stops writers and readers for a moment.
    FOR step IN 0..months_ahead LOOP
        name := 'audit_event_' || to_char(month + make_interval(months => step), 'YYYY_MM');
        IF to_regclass(name) IS NULL THEN
            made := made + 1;
        END IF;
    END LOOP;
    IF made = 0 THEN
        RETURN 0;
    END IF;
    stray := EXISTS (SELECT FROM audit_event_default WHERE ts >= (month || '+00')::timestamptz
                                                       AND ts < (upto || '+00')::timestamptz);
    IF stray THEN
        LOCK TABLE audit_event IN ACCESS EXCLUSIVE MODE;
        ALTER TABLE audit_event DETACH PARTITION audit_event_default;
        ALTER TABLE audit_event_default RENAME TO audit_event_stray;
        CREATE TABLE audit_event_default PARTITION OF audit_event DEFAULT;
        CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON audit_event_default
            FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change();
    END IF;
    FOR step IN 0..months_ahead LOOP
        name := 'audit_event_' || to_char(month, 'YYYY_MM');
        IF to_regclass(name) IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF audit_event FOR VALUES FROM (%L) TO (%L)',
                name, month || '+00', (month + interval '1 month') || '+00');
            EXECUTE format('CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON %I '
                'FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()', name);
        END IF;
        month := month + interval '1 month';
    END LOOP;
    IF stray THEN
        INSERT INTO audit_event SELECT * FROM audit_event_stray;
        DROP TABLE audit_event_stray;
    END IF;
    RETURN made;
END $$
"""

BEFORE = """
CREATE OR REPLACE FUNCTION audit_ensure_partitions(months_ahead integer, at timestamptz DEFAULT now())
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    month timestamp := date_trunc('month', at AT TIME ZONE 'UTC');
    name text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(4919131752989213764);
    FOR step IN 0..months_ahead LOOP
        name := 'audit_event_' || to_char(month, 'YYYY_MM');
        IF to_regclass(name) IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF audit_event FOR VALUES FROM (%L) TO (%L)',
                name, month || '+00', (month + interval '1 month') || '+00');
            EXECUTE format('CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON %I '
                'FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()', name);
            made := made + 1;
        END IF;
        month := month + interval '1 month';
    END LOOP;
    RETURN made;
END $$
"""


def upgrade() -> None:
    op.execute(PARTITIONS)


def downgrade() -> None:
    op.execute(BEFORE)
