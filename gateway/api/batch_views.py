"""Files and batches as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gateway.api.answers import Described
from gateway.batches.values import Batch, Status, StoredFile


class FileView(Described):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int = Field(description="when it is deleted")
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileDeletedView(Described):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilePage(Described):
    object: Literal["list"] = "list"
    data: list[FileView]
    first_id: str | None
    last_id: str | None = Field(description="send it as `after` for the next page")
    has_more: bool


class ProblemView(Described):
    code: str
    message: str
    line: int | None = Field(description="of the input file, from 1")
    param: str | None


class ProblemsView(Described):
    object: Literal["list"] = "list"
    data: list[ProblemView]


class CountsView(Described):
    total: int
    completed: int
    failed: int


class BatchView(Described):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: ProblemsView | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Status
    output_file_id: str | None = Field(description="answers with status 200; absent where there are none")
    error_file_id: str | None = Field(description="refusals, and requests that never ran")
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: CountsView
    metadata: dict[str, str]


class BatchPage(Described):
    object: Literal["list"] = "list"
    data: list[BatchView]
    first_id: str | None
    last_id: str | None = Field(description="send it as `after` for the next page")
    has_more: bool


def file_view(file: StoredFile) -> FileView:
    return FileView(
        id=file.id,
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )


def file_page(found: Sequence[StoredFile], limit: int) -> FilePage:
    """`found` holds up to `limit` + 1 files."""
    shown = [file_view(file) for file in found[:limit]]
    ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None}
    return FilePage(data=shown, has_more=len(found) > limit, **ends)


def batch_view(batch: Batch) -> BatchView:
    at = batch.times.get
    problems = [ProblemView(code=one.code, message=one.message, line=one.line, param=one.param) for one in batch.errors]
    return BatchView(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=ProblemsView(data=problems) if problems else None,
        input_file_id=batch.input_file_id,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=int(batch.created_at.timestamp()),
        expires_at=int(batch.expires_at.timestamp()),
        in_progress_at=at("in_progress"),
        finalizing_at=at("finalizing"),
        completed_at=at("completed"),
        failed_at=at("failed"),
        expired_at=at("expired"),
        cancelling_at=at("cancelling"),
        cancelled_at=at("cancelled"),
        request_counts=CountsView(total=batch.total, completed=batch.completed, failed=batch.failed),
        metadata=dict(batch.metadata),
    )


def batch_page(found: Sequence[Batch], limit: int) -> BatchPage:
    """`found` holds up to `limit` + 1 batches."""
    shown = [batch_view(batch) for batch in found[:limit]]
    ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None}
    return BatchPage(data=shown, has_more=len(found) > limit, **ends)
