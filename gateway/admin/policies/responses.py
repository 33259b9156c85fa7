"""The answer to a change of the policy: the new version with its ETag, or the proposal that waits."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from gateway.access.history.editor import Written
from gateway.admin.policies.views import WriteView, finding, proposal_view, version_view
from gateway.admin.reach import Reach


def write_response(written: Written, reach: Reach) -> JSONResponse:
    view = WriteView(
        version=version_view(written.stored, reach) if written.stored is not None else None,
        proposal=proposal_view(written.proposal, reach) if written.proposal is not None else None,
        warnings=[finding(warning) for warning in written.warnings],
        replayed=written.replayed,
    )
    headers = {} if written.stored is None else {"etag": written.stored.etag}
    return JSONResponse(
        view.model_dump(mode="json"), status_code=200 if written.stored is not None else 202, headers=headers
    )
