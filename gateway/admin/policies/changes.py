"""A change of the policy over HTTP: the headers that steer it, and its audit event whatever the outcome."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from gateway.access.document.diff import differences, summary
from gateway.access.document.model import PolicySet
from gateway.access.document.parsing import parse_policy
from gateway.access.history.editor import Change, Written
from gateway.access.history.versions import NewVersion
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.recording import Event, changing
from gateway.errors import InvalidRequest

_log = logging.getLogger("esclusa.policy")
MAX_HEADER = 256
IF_MATCH = "the ETag of the version that you changed"
CHANGE_HEADERS: dict[str, Any] = {
    "parameters": [
        {"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}, "description": IF_MATCH},
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {"type": "string", "maxLength": MAX_HEADER},
            "description": "makes a repeated request answer as the first one did",
        },
        {
            "name": "X-Change-Reason",
            "in": "header",
            "schema": {"type": "string", "maxLength": MAX_HEADER},
            "description": "why; kept with the version and in the audit record",
        },
        {
            "name": "Changed-By",
            "in": "header",
            "schema": {"type": "string", "maxLength": MAX_HEADER},
            "description": "on whose behalf; recorded beside the caller, never instead of it",
        },
    ]
}
CHANGE_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, description in (
        (403, "`not_permitted`, `cannot_grant_beyond_own_rights`"),
        (409, "`would_lock_out`, `idempotency_key_reused`, `request_in_progress`, `already_exists`"),
        (412, "`etag_mismatch`; the header `ETag` has the current one"),
        (422, "`unknown_field`, `invalid_policy`, `policy_test_failed`; `param` is the path in the document"),
        (428, "`if_match_required`"),
        (503, "`policy_unavailable`, `audit_unavailable`"),
    )
}


def change_from(request: Request, call: AdminCall) -> Change:
    """Raises `InvalidRequest` for a header that is too long or not printable."""
    return Change(
        author=call.principal,
        context=call.context,
        if_match=_header(request, "if-match"),
        reason=_header(request, "x-change-reason") or "",
        idempotency_key=_header(request, "idempotency-key"),
    )


async def recorded(
    guard: PermissionGuard, call: AdminCall, request: Request, target: str, work: Callable[[], Awaitable[Written]]
) -> Written:
    """Do the work and write its audit event: before and after, or the reason of the refusal."""
    async with changing(guard, call, target) as event:
        event.reason = _header(request, "x-change-reason") or None
        event.before_etag = _header(request, "if-match")
        behalf = _header(request, "changed-by")
        written = await work()
        _tell(event, written, behalf)
    return written


def _tell(event: Event, written: Written, behalf: str | None) -> None:
    content = _content(written)
    diff = _diff(written, content)
    if behalf is not None:
        diff["changed_by"] = behalf
    gains = [warning.message for warning in written.warnings if warning.kind == "own_gain"]
    if gains:
        diff["author_gains"] = gains
    if written.break_glass:
        diff["break_glass"] = list(written.break_glass)
        _log.warning("a policy change was made under a break-glass binding: %s", ", ".join(written.break_glass))
    approver = content.approver if content is not None else None
    event.status = 200 if written.stored is not None else 202
    event.before_etag = written.before.etag if written.before is not None else None
    event.after_etag = written.stored.etag if written.stored is not None else None
    event.diff = diff
    event.approver = approver.subject if approver is not None else None


def parse_stored(content: NewVersion) -> PolicySet:
    return parse_policy(content.source, name="policy", syntax=content.syntax)


def _content(written: Written) -> NewVersion | None:
    if written.stored is not None:
        return written.stored.content
    return written.proposal.content if written.proposal is not None else None


def _diff(written: Written, content: NewVersion | None) -> dict[str, object]:
    if written.replayed or content is None or written.before is None:
        return {"replayed": written.replayed}
    diff: dict[str, object] = dict(summary(differences(parse_stored(written.before.content), parse_stored(content))))
    if written.proposal is not None:
        diff["proposal"] = str(written.proposal.id)
    return diff


def _header(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    if not values:
        return None
    if len(values) > 1 or len(values[0]) > MAX_HEADER or not values[0].isprintable():
        raise InvalidRequest(
            f"The header `{name}` must be sent once, with at most {MAX_HEADER} printable characters.",
            code="invalid_header",
            param=name,
        )
    return values[0].strip() or None
