"""The lines of output and error files, in OpenAI's form. Pure."""

from __future__ import annotations

import orjson

from gateway.batches.values import LineAnswer

UNRUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    "failed": ("batch_failed", "This request was not executed: the batch failed; `errors` of the batch says why."),
}
"""What the error file says of requests that never ran, by the status in which their batch ended."""


def result_id(batch_id: str, number: int) -> str:
    """Of one result: the same for every attempt, because there is at most one result."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def answered_line(batch_id: str, number: int, custom_id: str, answer: LineAnswer) -> bytes:
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": orjson.Fragment(answer.body),
    }
    line = {"id": result_id(batch_id, number), "custom_id": custom_id, "response": response, "error": None}
    return orjson.dumps(line) + b"\n"


def failed_line(batch_id: str, number: int, custom_id: str, code: str, message: str) -> bytes:
    """Of a request that got no answer at all."""
    error = {"code": code, "message": message}
    line = {"id": result_id(batch_id, number), "custom_id": custom_id, "response": None, "error": error}
    return orjson.dumps(line) + b"\n"


def unrun_line(batch_id: str, number: int, custom_id: str, status: str) -> bytes:
    return failed_line(batch_id, number, custom_id, *UNRUN[status])


def unrun_bytes(batch_id: str, number: int, custom_id: str, status: str) -> int:
    return len(unrun_line(batch_id, number, custom_id, status))
