"""The audit trail: monthly partitions, append-only by trigger, content and quarantine beside it.

Revision: 0001_audit, the first. Reversible; the way down destroys the trail.
"""

from __future__ import annotations

from alembic import op

revision = "0001_audit"
down_revision = None
branch_labels = None
depends_on = None

EVENT = """
CREATE TABLE audit_event (
    ts              timestamptz NOT NULL,
    event_id        uuid        NOT NULL,
    request_id      uuid        NOT NULL,
    phase           text        NOT NULL,
    schema_version  smallint    NOT NULL,
    node_id         text        NOT NULL,
    boot_id         uuid        NOT NULL,
    node_seq        bigint      NOT NULL,
    ingested_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant          text        NOT NULL,
    issuer          text        NOT NULL,
    subject         text,
    personal        jsonb,
    personal_salt   bytea,
    principal_type  text        NOT NULL,
    client_id       text,
    department      text,
    roles           text[]      NOT NULL DEFAULT '{}',
    credential_id   text,
    route           text        NOT NULL,
    action          text,
    target          text,
    stream          boolean,
    model_requested text,
    model_resolved  text,
    model_served    text,
    decision        text        NOT NULL,
    deny_code       text,
    policy_version  integer,
    rule_id         text,
    route_reason    text,
    http_status     smallint,
    error_code      text,
    finish_reason   text,
    outcome         text,
    tokens_in       integer,
    tokens_out      integer,
    tokens_cached   integer,
    cost_micro      bigint,
    currency        text,
    total_us        bigint,
    ttft_us         bigint,
    rec             bytea       NOT NULL,
    prev_hash       bytea       NOT NULL,
    hash            bytea       NOT NULL,
    seal_id         bigint,
    CONSTRAINT pk_audit_event PRIMARY KEY (ts, event_id),
    CONSTRAINT ck_audit_event_phase
        CHECK (phase IN ('intent', 'completion', 'denied', 'aggregated', 'admin', 'access')),
    CONSTRAINT ck_audit_event_decision CHECK (decision IN ('allow', 'deny', 'error')),
    CONSTRAINT ck_audit_event_hash CHECK (octet_length(hash) = 32 AND octet_length(prev_hash) = 32)
) PARTITION BY RANGE (ts)
"""

INDEXES = (
    "CREATE INDEX ix_audit_event_ts_brin ON audit_event USING brin (ts)",
    "CREATE INDEX ix_audit_event_tenant_ts ON audit_event (tenant, ts DESC, event_id)",
    "CREATE INDEX ix_audit_event_subject_ts ON audit_event (subject, ts)",
    "CREATE INDEX ix_audit_event_model_served_ts ON audit_event (model_served, ts)",
    "CREATE INDEX ix_audit_event_refused ON audit_event (ts) WHERE decision <> 'allow'",
    "CREATE INDEX ix_audit_event_request_id ON audit_event (request_id)",
    "CREATE INDEX ix_audit_event_chain ON audit_event (boot_id, node_seq)",
    "CREATE INDEX ix_audit_event_ingested_at ON audit_event (ingested_at, event_id)",
)

# Erasure may empty the personal columns and the sealer may set seal_id once; every other change is refused.
# 42501 is `insufficient_privilege`: the answer a role without the right would get.
APPEND_ONLY = """
CREATE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
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

ROW_TRIGGER = """
CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE ON audit_event
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_change()
"""

TRUNCATE_TRIGGER = """
CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()
"""

# Returns the partitions it made. The month of a row is taken in UTC whatever the session's time zone says.
PARTITIONS = """
CREATE FUNCTION audit_ensure_partitions(months_ahead integer, at timestamptz DEFAULT now())
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

CONTENT = """
CREATE TABLE audit_content (
    event_id   uuid        NOT NULL,
    kind       text        NOT NULL,
    ciphertext bytea       NOT NULL,
    key_id     text        NOT NULL,
    salt       bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT pk_audit_content PRIMARY KEY (event_id, kind),
    CONSTRAINT ck_audit_content_kind CHECK (kind IN ('prompt', 'response'))
)
"""

QUARANTINE = """
CREATE TABLE audit_quarantine (
    id             bigint GENERATED ALWAYS AS IDENTITY,
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    node_id        text        NOT NULL,
    boot_id        uuid        NOT NULL,
    node_seq       bigint      NOT NULL,
    rec            bytea       NOT NULL,
    prev_hash      bytea       NOT NULL,
    hash           bytea       NOT NULL,
    side           bytea,
    error          text        NOT NULL,
    CONSTRAINT pk_audit_quarantine PRIMARY KEY (id),
    CONSTRAINT uq_audit_quarantine_boot_id_node_seq UNIQUE (boot_id, node_seq)
)
"""


def upgrade() -> None:
    op.execute(EVENT)
    for statement in INDEXES:
        op.execute(statement)
    op.execute(APPEND_ONLY)
    op.execute(ROW_TRIGGER)
    op.execute(TRUNCATE_TRIGGER.format(table="audit_event"))
    op.execute("CREATE TABLE audit_event_default PARTITION OF audit_event DEFAULT")
    op.execute(TRUNCATE_TRIGGER.format(table="audit_event_default"))
    op.execute(PARTITIONS)
    op.execute("SELECT audit_ensure_partitions(3)")
    op.execute(CONTENT)
    op.execute("CREATE INDEX ix_audit_content_expires_at ON audit_content (expires_at)")
    op.execute(QUARANTINE)


def downgrade() -> None:
    op.execute("DROP TABLE audit_quarantine")
    op.execute("DROP TABLE audit_content")
    op.execute("DROP TABLE audit_event")
    op.execute("DROP FUNCTION audit_ensure_partitions(integer, timestamptz)")
    op.execute("DROP FUNCTION audit_refuse_change()")
