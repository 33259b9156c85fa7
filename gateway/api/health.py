"""`/livez`, `/readyz`, `/health`: the only routes without a credential. They tell states, never names or addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from gateway.api.answers import Alive, ReadinessView

RETRY_AFTER_S = 5
READINESS: dict[int | str, dict[str, Any]] = {
    200: {"model": ReadinessView},
    503: {"model": ReadinessView, "description": "not yet, or not any more; `retry-after` says when to ask again"},
}


@dataclass(frozen=True, slots=True)
class Part:
    """The readiness of one part: its state, whether requests can be served, and its loading progress."""

    name: str
    state: str
    serves: bool = True
    stage: str = "ready"
    percent: float = 100.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """`parts` maps a dependency to its state; `ready` only when every one that must work does."""

    ready: bool
    stage: str = "ready"
    percent: float = 100.0
    parts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Readiness:
        loads = next((part for part in parts if part.stage != "ready"), None)
        return cls(
            ready=all(part.serves for part in parts),
            stage="ready" if loads is None else loads.stage,
            percent=100.0 if loads is None else loads.percent,
            parts={part.name: part.state for part in parts},
        )


def routes(readiness: Callable[[], Readiness]) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez", summary="The process answers", responses={200: {"model": Alive}})
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="The gateway can serve; 503 with the stage while it loads", responses=READINESS)
    async def readyz() -> Response:
        return _answer(readiness())

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="The same as /readyz", responses=READINESS)
    async def health() -> Response:
        return _answer(readiness())

    return router


def _answer(state: Readiness) -> Response:
    loads = state.stage != "ready" and state.parts.get("engine") not in ("failed", "stopped", "stalled")
    body: dict[str, Any] = {
        "status": "ready" if state.ready else "loading" if loads else "unavailable",
        "stage": state.stage,
        "percent": round(state.percent, 1),
        "parts": dict(state.parts),
    }
    headers = {} if state.ready else {"retry-after": str(RETRY_AFTER_S)}
    status = 200 if state.ready else 503
    return Response(orjson.dumps(body), status_code=status, headers=headers, media_type="application/json")
