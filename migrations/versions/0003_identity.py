"""Service accounts, their API keys, revocations, and the requests already served.

Revision: 0003_identity, after 0002_access. Reversible; the way down destroys every key and revocation.
"""

from __future__ import annotations

from alembic import op

revision = "0003_identity"
down_revision = "0002_access"
branch_labels = None
depends_on = None

ACCOUNT = """
CREATE TABLE identity_service_account (
    id            uuid        NOT NULL,
    tenant        text        NOT NULL,
    name          text        NOT NULL,
    owner_issuer  text        NOT NULL,
    owner_subject text        NOT NULL,
    roles         text[]      NOT NULL,
    department    text,
    clearance     text,
    models        text[],
    disabled      boolean     NOT NULL DEFAULT false,
    version       integer     NOT NULL DEFAULT 1,
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_identity_service_account PRIMARY KEY (id),
    CONSTRAINT uq_identity_service_account_tenant_name UNIQUE (tenant, name)
)
"""

KEY = """
CREATE TABLE identity_api_key (
    id           uuid        NOT NULL,
    key_id       text        NOT NULL,
    account_id   uuid        NOT NULL,
    tenant       text        NOT NULL,
    digest       bytea       NOT NULL,
    name         text        NOT NULL,
    roles        text[],
    models       text[],
    created_by   text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    replaced_by  text,
    CONSTRAINT pk_identity_api_key PRIMARY KEY (id),
    CONSTRAINT uq_identity_api_key_key_id UNIQUE (key_id),
    CONSTRAINT ck_identity_api_key_digest CHECK (octet_length(digest) = 32),
    CONSTRAINT fk_identity_api_key_account_id_identity_service_account
        FOREIGN KEY (account_id) REFERENCES identity_service_account (id)
)
"""

REVOCATION = """
CREATE TABLE identity_revocation (
    id            uuid        NOT NULL,
    tenant        text        NOT NULL,
    kind          text        NOT NULL,
    issuer        text,
    subject       text,
    credential_id text,
    issued_before timestamptz,
    reason        text        NOT NULL,
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,
    lifted_at     timestamptz,
    lifted_by     text,
    CONSTRAINT pk_identity_revocation PRIMARY KEY (id),
    CONSTRAINT ck_identity_revocation_kind CHECK (kind IN ('credential', 'subject', 'issued_before'))
)
"""

IDEMPOTENCY = """
CREATE TABLE identity_idempotency (
    tenant         text        NOT NULL,
    issuer         text        NOT NULL,
    subject        text        NOT NULL,
    key            text        NOT NULL,
    request_sha256 text        NOT NULL,
    resource       text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_identity_idempotency PRIMARY KEY (tenant, issuer, subject, key)
)
"""

INDEXES = (
    "CREATE INDEX ix_identity_api_key_account_id ON identity_api_key (account_id)",
    "CREATE INDEX ix_identity_revocation_tenant_id ON identity_revocation (tenant, id)",
)


def upgrade() -> None:
    for statement in (ACCOUNT, KEY, REVOCATION, IDEMPOTENCY, *INDEXES):
        op.execute(statement)


def downgrade() -> None:
    for table in ("identity_idempotency", "identity_revocation", "identity_api_key", "identity_service_account"):
        op.execute(f"DROP TABLE {table}")
