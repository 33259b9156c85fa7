"""`/admin/v1/engines`: the engines of this replica, and pausing, draining, resting them. Permission `engine.operate`.

Parses and renders; `flow.operation` says which action fits which state, the backend acts. Every action and every
refused one is an audit event with the state before and after; a read is an `access` event.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Response
from pydantic import BaseModel, Field

from gateway.admin.bodies import Page
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.recording import IdempotencyKey, changing, reading
from gateway.flow.operation import SETTLED, EngineAction, EngineOperator, EngineReport, no_engine
from gateway.storage.idempotency import IdempotencyStore, KeyTaken, request_key

State = Literal[
    "loading",
    "ready",
    "paused",
    "draining",
    "drained",
    "asleep",
    "waking",
    "rebuilding",
    "stalled",
    "failed",
    "stopped",
]
ChangeReason = Annotated[
    str | None, Header(alias="X-Change-Reason", max_length=256, description="why; kept in the audit record")
]
SUMMARIES: dict[EngineAction, tuple[str, str]] = {
    EngineAction.PAUSE: (
        "Stop stepping",
        "Running answers stand still and keep their place; new requests answer 503 until `:resume`.",
    ),
    EngineAction.RESUME: ("Go on after a pause or a drain", "Also calls a drain or a sleep off that has not ended."),
    EngineAction.DRAIN: (
        "Refuse new requests and let running ones end",
        "Answers 202 while requests still run; the state becomes `drained`.",
    ),
    EngineAction.SLEEP: (
        "Drain, release the weights and forget the prefix cache",
        "Answers 202 while requests still run; the state becomes `asleep`.",
    ),
    EngineAction.WAKE: ("Read the weights again and serve", "Answers 202 while the weights are being read."),
    EngineAction.CLEAR_POISON: (
        "Let refused requests run again",
        "Forgets which requests have stopped the engine (`poison_request`); the state stays as it is.",
    ),
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    404: {"description": "`model_not_found`: no engine of this replica runs it"},
    409: {"description": "`engine_state`: the action does not fit the state; `idempotency_key_reused`"},
    503: {"description": "`engine_unavailable`: it does not react; `audit_unavailable`, `database_unavailable`"},
}


class EngineView(BaseModel):
    object: Literal["engine"] = "engine"
    model: str
    node: str = Field(description="the replica that answered; each replica's engines are operated on their own")
    state: State
    stage: str = Field(description="of the first load, of waking or of a rebuild")
    percent: float
    running: int
    waiting: int
    kv_usage: float = Field(description="held blocks of all blocks, 0 to 1")
    kv_blocks: int
    kv_blocks_free: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int = Field(description="prompt tokens looked up in the prefix cache")
    prefix_hits: int
    preemptions: int
    step_faults: int
    restarts: int
    poisoned: int = Field(description="requests refused because equal ones had stopped the engine twice")
    stalled_s: float = Field(description="how long the present step has run beyond the watchdog's limit")


class EnginePage(Page):
    data: list[EngineView]


def routes(
    operator: EngineOperator | None, requests: IdempotencyStore, guard: PermissionGuard, *, node_id: str
) -> APIRouter:
    """The operator's routes. `requests` remembers idempotency keys."""
    router = APIRouter(prefix="/admin/v1/engines", tags=["engines"])
    permitted = Depends(guard.require("engine.operate"))

    @router.get("", summary="The engines of this replica", response_model=EnginePage)
    async def engines(call: AdminCall = permitted) -> EnginePage:
        async with reading(guard, call, "engines"):
            found = operator.reports() if operator is not None else ()
        return EnginePage(data=[_view(report, node_id) for report in found], total=len(found))

    @router.get(
        "/{model:path}",
        summary="One engine: state, load, KV use, restarts",
        response_model=EngineView,
        responses=_described(404),
    )
    async def engine(model: str, call: AdminCall = permitted) -> EngineView:
        async with reading(guard, call, f"engines/{model}"):
            report = _present(operator, model)
        return _view(report, node_id)

    def add(action: EngineAction) -> None:
        summary, description = SUMMARIES[action]

        @router.post(
            f"/{{model:path}}:{action.value}",
            name=f"{action.value.replace('-', '_')}_engine",
            summary=summary,
            description=description,
            response_model=EngineView,
            responses={
                202: {"model": EngineView, "description": "begun; the state tells when it is done"},
                **_described(404, 409, 503),
            },
        )
        async def operate(
            model: str,
            response: Response,
            key: IdempotencyKey = None,
            reason: ChangeReason = None,
            call: AdminCall = permitted,
        ) -> EngineView:
            async with changing(guard, call, f"engines/{model}:{action.value}") as event:
                event.reason = reason
                before = _present(operator, model)
                request = request_key(call.principal, key, f"engine {action.value}", model)
                replayed = await requests.replayed_resource(request) is not None
                after = before
                if operator is not None and not replayed:
                    after = await operator.act(model, action)
                    if request is not None:
                        try:
                            await requests.remember(request, model)
                        except KeyTaken:
                            replayed = True  # the same request twice at the same time; the action is the same too
                done = after.state == SETTLED.get(action, after.state) or replayed
                response.status_code = event.status = 200 if done else 202
                event.diff = {"before": _facts(before), "after": _facts(after), "replayed": replayed}
            return _view(after, node_id)

    for action in EngineAction:
        add(action)
    return router


def _present(operator: EngineOperator | None, model: str) -> EngineReport:
    report = operator.report(model) if operator is not None else None
    if report is None:
        raise no_engine()
    return report


def _view(report: EngineReport, node_id: str) -> EngineView:
    return EngineView(node=node_id, **asdict(report))


def _facts(report: EngineReport) -> dict[str, object]:
    """The part of a report that goes on record: changes made, and requests affected."""
    return {"state": report.state, "running": report.running, "waiting": report.waiting}


def _described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {**REFUSALS[status], "content": content} for status in statuses}
