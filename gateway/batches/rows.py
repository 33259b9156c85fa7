"""Rows of the tables as values, and back. Pure."""

from __future__ import annotations

from typing import Any

from gateway.batches.values import Batch, Origin, Owner, Problem, SealedBytes, StoredFile, principal_from_json


def file_of(row: Any) -> StoredFile:
    return StoredFile(
        id=row.id,
        owner=Owner(row.tenant, row.issuer, row.subject),
        purpose=row.purpose,
        filename=row.filename,
        bytes=row.bytes,
        lines=row.lines,
        created_at=row.created_at,
        expires_at=row.expires_at,
        batch_id=row.batch_id,
    )


def batch_of(row: Any) -> Batch:
    return Batch(
        id=row.id,
        owner=Owner(row.tenant, row.issuer, row.subject),
        input_file_id=row.input_file_id,
        endpoint=row.endpoint,
        status=row.status,
        created_at=row.created_at,
        expires_at=row.expires_at,
        principal=principal_from_json(row.principal),
        origin=Origin(**row.origin),
        model=row.model,
        metadata=row.metadata,
        errors=tuple(Problem(**problem) for problem in row.errors),
        times=row.times,
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        keep_s=row.keep_s,
    )


def sealed_of(content: bytes, key_id: str | None, salt: bytes | None) -> SealedBytes:
    return SealedBytes(bytes(content), key_id, None if salt is None else bytes(salt))
