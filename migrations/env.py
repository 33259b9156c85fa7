"""Runs the revisions on the connection that `gateway.storage.migrate` opened. Holds no URL of its own."""

from __future__ import annotations

import importlib

from alembic import context

from gateway.storage.base import metadata

for _tables in ("audit.tables", "access.history.tables", "identity.tables", "storage.idempotency"):
    importlib.import_module(f"gateway.{_tables}")

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `esclusa db upgrade` (or `gateway.storage.migrate.upgrade`)")

context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
