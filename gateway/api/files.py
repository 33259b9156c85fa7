"""`/v1/files`: files of the caller, for batches. Nobody else finds them, whatever rights they have.

Behind the action `batches.use`. Every upload, read and deletion is an event of the audit trail, refused or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.recording import changing, reading
from gateway.api.batch_views import FileDeletedView, FilePage, FileView, file_page, file_view
from gateway.api.upload import FormParts, pieces, reader_for, too_large
from gateway.batches.file_store import CHUNK, FileStore, empty_file
from gateway.batches.values import Owner, StoredFile
from gateway.errors import InvalidRequest
from gateway.settings import BatchSettings

RIGHT = "batches.use"
MAX_PAGE = 1000
SHORTEST, LONGEST = 3600, 2_592_000
"""Seconds that OpenAI's API takes in `expires_after`."""
OTHER_PURPOSES = ("assistants", "fine-tune", "vision", "user_data", "evals")
After = Annotated[str | None, Query(max_length=64, pattern=r"^[a-z]+[-_][0-9a-f]+$")]
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "JSON Lines in UTF-8"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": SHORTEST, "maximum": LONGEST},
                    },
                }
            }
        },
    }
}


def routes(files: FileStore, settings: BatchSettings, guard: PermissionGuard) -> APIRouter:
    router = APIRouter(prefix="/v1/files", tags=["files"])
    allowed = Depends(guard.require(RIGHT))

    @router.post("", summary="Upload a file", response_model=FileView, openapi_extra=UPLOAD)
    async def upload(request: Request, call: AdminCall = allowed) -> FileView:
        async with changing(guard, call, "files") as event:
            reader = reader_for(request.headers, settings.max_file_bytes)
            file = await _stored(files, settings, Owner.of(call.principal), reader, request.stream())
            event.target, event.diff = f"files/{file.id}", {"bytes": file.bytes, "lines": file.lines}
        return file_view(file)

    @router.get("", summary="Your files", response_model=FilePage)
    async def list_files(
        after: After = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
        order: Literal["asc", "desc"] = "desc",
        purpose: Annotated[str | None, Query(max_length=64)] = None,
        call: AdminCall = allowed,
    ) -> FilePage:
        shown = min(limit, MAX_PAGE)
        async with reading(guard, call, "files"):
            found = await files.page(
                Owner.of(call.principal), after=after, limit=shown + 1, ascending=order == "asc", purpose=purpose
            )
        return file_page(found, shown)

    @router.get("/{file_id}", summary="One of your files", response_model=FileView)
    async def get_file(file_id: str, call: AdminCall = allowed) -> FileView:
        async with reading(guard, call, f"files/{_shown(file_id)}"):
            return file_view(await files.get(Owner.of(call.principal), file_id))

    @router.delete("/{file_id}", summary="Delete a file", response_model=FileDeletedView)
    async def delete_file(file_id: str, call: AdminCall = allowed) -> FileDeletedView:
        async with changing(guard, call, f"files/{_shown(file_id)}"):
            await files.delete(Owner.of(call.principal), file_id)
        return FileDeletedView(id=file_id)

    @router.get(
        "/{file_id}/content",
        summary="What a file holds",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
    )
    async def content(file_id: str, call: AdminCall = allowed) -> StreamingResponse:
        async with reading(guard, call, f"files/{_shown(file_id)}/content"):
            file = await files.get(Owner.of(call.principal), file_id)
            held = files.content(file)
            first = await anext(held, b"")  # what cannot be read is refused before anything is sent
        return StreamingResponse(
            _joined(first, held), media_type="application/octet-stream", headers={"content-length": str(file.bytes)}
        )

    return router


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece


async def _stored(
    files: FileStore, settings: BatchSettings, owner: Owner, reader: FormParts, body: AsyncIterator[bytes]
) -> StoredFile:
    """The file as it was sent, or nothing of it. Raises what is wrong with it."""
    file, number, lines = files.new(owner, "batch"), 0, 0
    await files.begin(file)
    try:
        last = b""
        async for piece in pieces(reader, body, CHUNK):
            size = file.bytes + len(piece)
            if size > settings.max_file_bytes:
                raise too_large(settings.max_file_bytes)
            lines, last = lines + piece.count(b"\n"), piece[-1:]
            if lines > settings.max_lines:
                raise InvalidRequest(
                    f"The file has more than {settings.max_lines} lines.",
                    code="too_many_lines",
                    param="file",
                    hint="send several files",
                    headers={"connection": "close"},
                )
            await files.append(file, number, piece, (size, lines))
            file, number = replace(file, bytes=size), number + 1
        if not file.bytes:
            raise empty_file()
        keep = _checked(reader.form.fields)
        return await files.finish(file, reader.form.filename or "", lines + (last != b"\n"), keep)
    except ClientDisconnect:
        raise InvalidRequest("The client hung up while the file was being read.", code="client_disconnect") from None
    finally:
        await files.abandon(file)


def _checked(fields: dict[str, str]) -> timedelta | None:
    """How long the file is to be kept. Raises `InvalidRequest` for a field that is wrong or missing."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("`purpose` is required.", code="missing_required_parameter", param="purpose")
    if purpose != "batch":
        known = f"the purpose `{purpose}` is" if purpose in OTHER_PURPOSES else "other purposes are"
        raise InvalidRequest(
            f"`purpose` must be `batch`; {known} not served here.", code="invalid_value", param="purpose"
        )
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("The anchor must be `created_at`.", code="invalid_value", param="expires_after.anchor")
    if seconds is None or not seconds.isascii() or not seconds.isdigit() or not SHORTEST <= int(seconds) <= LONGEST:
        raise InvalidRequest(
            f"`expires_after.seconds` must be from {SHORTEST} to {LONGEST}.",
            code="invalid_value",
            param="expires_after.seconds",
        )
    return timedelta(seconds=int(seconds))


def _shown(name: str) -> str:
    """As it goes on record: an id, whatever was sent in its place."""
    return name[:64]
