"""Runs the revisions on the connection that `gateway.storage.migrate` opened. Holds no URL of its own."""

from __future__ import annotations

import importlib
import importlib.util

from alembic import context

from gateway.storage.base import metadata

for _domain in ("audit", "access", "identity", "limits"):
    if importlib.util.find_spec(f"gateway.{_domain}.tables") is not None:
        importlib.import_module(f"gateway.{_domain}.tables")

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `esclusa db upgrade` (or `gateway.storage.migrate.upgrade`)")

context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
