"""Indexes for the filters of the audit API that had none: without a match they read the whole month.

Revision: 0009_filters, after 0008_roles. Reversible. They cost about 100 bytes a row.
"""

from __future__ import annotations

from alembic import op

revision = "0009_filters"
down_revision = "0008_roles"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_audit_event_client_ts": "(client_id, ts)",
    "ix_audit_event_department_ts": "(department, ts)",
    "ix_audit_event_model_requested_ts": "(model_requested, ts)",
    "ix_audit_event_outcome_ts": "(outcome, ts) WHERE outcome <> 'ok'",
    "ix_audit_event_status_ts": "(http_status, ts) WHERE http_status <> 200",
    "ix_audit_event_labels": "USING gin ((personal -> 'labels') jsonb_path_ops) WHERE personal ? 'labels'",
}


def upgrade() -> None:
    for name, columns in INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON audit_event {columns}")


def downgrade() -> None:
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
