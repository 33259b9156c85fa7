"""The policy history: append-only versions, the version in force, proposals that wait for a second person.

Revision: 0002_access, after 0001_audit. Reversible; the way down destroys the history.
"""

from __future__ import annotations

from alembic import op

revision = "0002_access"
down_revision = "0001_audit"
branch_labels = None
depends_on = None

VERSION = """
CREATE TABLE policy_version (
    version          integer     NOT NULL,
    sha256           text        NOT NULL,
    source           text        NOT NULL,
    syntax           text        NOT NULL,
    known_models     text[]      NOT NULL,
    author_tenant    text        NOT NULL,
    author_issuer    text        NOT NULL,
    author_subject   text        NOT NULL,
    author_display   text,
    reason           text        NOT NULL DEFAULT '',
    origin           text        NOT NULL,
    restored_from    integer,
    approver_tenant  text,
    approver_issuer  text,
    approver_subject text,
    approver_display text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_policy_version PRIMARY KEY (version),
    CONSTRAINT ck_policy_version_syntax CHECK (syntax IN ('yaml', 'json')),
    CONSTRAINT ck_policy_version_origin CHECK (origin IN ('seed', 'change', 'restore', 'binding')),
    CONSTRAINT ck_policy_version_version CHECK (version >= 1)
)
"""

HEAD = """
CREATE TABLE policy_head (
    id      smallint NOT NULL,
    version integer  NOT NULL,
    CONSTRAINT pk_policy_head PRIMARY KEY (id),
    CONSTRAINT ck_policy_head_single CHECK (id = 1),
    CONSTRAINT fk_policy_head_version_policy_version FOREIGN KEY (version) REFERENCES policy_version (version)
)
"""

PROPOSAL = """
CREATE TABLE policy_proposal (
    id              uuid        NOT NULL,
    base_version    integer     NOT NULL,
    sha256          text        NOT NULL,
    source          text        NOT NULL,
    syntax          text        NOT NULL,
    known_models    text[]      NOT NULL,
    author_tenant   text        NOT NULL,
    author_issuer   text        NOT NULL,
    author_subject  text        NOT NULL,
    author_display  text,
    reason          text        NOT NULL DEFAULT '',
    origin          text        NOT NULL,
    restored_from   integer,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    state           text        NOT NULL DEFAULT 'pending',
    decided_tenant  text,
    decided_issuer  text,
    decided_subject text,
    decided_display text,
    decided_at      timestamptz,
    version         integer,
    CONSTRAINT pk_policy_proposal PRIMARY KEY (id),
    CONSTRAINT ck_policy_proposal_state CHECK (state IN ('pending', 'approved', 'rejected')),
    CONSTRAINT fk_policy_proposal_version_policy_version FOREIGN KEY (version) REFERENCES policy_version (version)
)
"""

IDEMPOTENCY = """
CREATE TABLE policy_idempotency (
    key            text        NOT NULL,
    author_issuer  text        NOT NULL,
    author_subject text        NOT NULL,
    request_sha256 text        NOT NULL,
    version        integer,
    proposal       uuid,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_policy_idempotency PRIMARY KEY (author_issuer, author_subject, key)
)
"""

APPEND_ONLY = """
CREATE FUNCTION policy_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the policy history is append-only' USING ERRCODE = '42501';
END $$
"""

ROW_TRIGGER = """
CREATE TRIGGER policy_version_append_only BEFORE UPDATE OR DELETE ON policy_version
    FOR EACH ROW EXECUTE FUNCTION policy_refuse_change()
"""

TRUNCATE_TRIGGER = """
CREATE TRIGGER policy_version_no_truncate BEFORE TRUNCATE ON policy_version
    FOR EACH STATEMENT EXECUTE FUNCTION policy_refuse_change()
"""


def upgrade() -> None:
    for statement in (VERSION, HEAD, PROPOSAL, IDEMPOTENCY, APPEND_ONLY, ROW_TRIGGER, TRUNCATE_TRIGGER):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE policy_idempotency")
    op.execute("DROP TABLE policy_proposal")
    op.execute("DROP TABLE policy_head")
    op.execute("DROP TABLE policy_version")
    op.execute("DROP FUNCTION policy_refuse_change()")
