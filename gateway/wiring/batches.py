"""Files and batches: their stores, their routes, and the worker that runs the lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp

from gateway.admin.guard import PermissionGuard
from gateway.api import batches, chat, completions, embeddings, files
from gateway.api.batch_lines import LineRunner, read_line
from gateway.api.http.body import BodyReader
from gateway.api.responses import create
from gateway.api.responses.kept import Stores
from gateway.audit.bytes_sealer import BytesSealer
from gateway.audit.content import ContentUnreadable
from gateway.audit.content_keys import ContentKeys
from gateway.batches.batch_store import BatchStore
from gateway.batches.database import Database
from gateway.batches.file_store import FileStore
from gateway.batches.line_store import LineStore
from gateway.batches.values import SealedBytes
from gateway.batches.worker import BatchWorker
from gateway.errors import Unavailable
from gateway.flow.context import Clock, IdSource
from gateway.flow.pipeline import Pipeline
from gateway.identity.service import IdentityService
from gateway.settings import Settings

ENDPOINTS = (chat, completions, embeddings)
"""The routes that a batch may be for, besides `/v1/responses`."""


@dataclass(frozen=True, slots=True)
class BatchParts:
    worker: BatchWorker
    routers: tuple[APIRouter, ...]


def batch_parts(
    settings: Settings,
    engine: AsyncEngine,
    keys: ContentKeys | None,
    pipeline: Pipeline,
    stores: Stores,
    identity: IdentityService,
    guard: PermissionGuard,
    clock: Clock,
    ids: IdSource,
    busy: Callable[[], bool],
) -> BatchParts:
    database = Database(engine)
    sealer = KeyedSealer(None if keys is None else BytesSealer(keys))
    reader = BodyReader(max_bytes=settings.http.max_body_bytes, timeout_s=settings.http.body_timeout_s)
    endpoints: dict[str, ASGIApp] = {route.PATH: route.endpoint(pipeline, reader) for route in ENDPOINTS}
    endpoints[create.PATH] = create.endpoint(pipeline, reader, stores)
    file_store = FileStore(database, sealer, settings.batches, clock, ids)
    store = BatchStore(
        database,
        file_store,
        settings.batches,
        clock,
        ids,
        read_line,
        max_line_bytes=settings.http.max_body_bytes,
    )
    run = LineRunner(endpoints, reader, identity.renewed, clock, ids, timeout_s=settings.http.request_timeout_s)
    lines = LineStore(database, sealer, settings.batches)
    worker = BatchWorker(store, lines, file_store, run, settings.batches, ids, busy, identity.is_revoked)
    return BatchParts(
        worker,
        (
            files.routes(file_store, settings.batches, guard),
            batches.routes(store, reader, endpoints, guard, worker.wake),
        ),
    )


class KeyedSealer:
    """Implements `batches.values.Sealer`: encrypted where there are content keys, as it is where there are none."""

    def __init__(self, sealer: BytesSealer | None) -> None:
        self._sealer = sealer

    def seal(self, content: bytes, name: str) -> SealedBytes:
        if self._sealer is None:
            return SealedBytes(content)
        key_id, salt, envelope = self._sealer.seal(content, name)
        return SealedBytes(envelope, key_id, salt)

    def open(self, sealed: SealedBytes, name: str) -> bytes:
        if sealed.key_id is None:
            return sealed.content
        try:
            if self._sealer is None:
                raise ContentUnreadable("key_missing")
            return self._sealer.open(sealed.key_id, sealed.salt or b"", sealed.content, name)
        except ContentUnreadable as error:
            code = "content_key_missing" if error.reason == "key_missing" else "content_damaged"
            raise Unavailable(
                "The file cannot be decrypted.", code=code, hint="ask an operator for the keys in use", detail=name
            ) from None
