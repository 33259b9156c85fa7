"""The tables of what is kept. What is said in a conversation is rows of responses, some without an answer."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, Integer, LargeBinary, Table, Text, Uuid, func

from gateway.storage.base import metadata

stored_response = Table(
    "stored_response",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("previous", Uuid),
    Column("conversation", Uuid),
    Column("key_id", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

stored_conversation = Table(
    "stored_conversation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)
