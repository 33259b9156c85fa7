"""Engine operations: the state an operator sees, one port, and the pure rule of which action fits which state.

Knows no engine. An action asks for a state; asking for the state that is already there changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.errors import NotFound


class EngineAction(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    SLEEP = "sleep"
    WAKE = "wake"
    CLEAR_POISON = "clear-poison"


FITS: Mapping[EngineAction, frozenset[str]] = {
    EngineAction.PAUSE: frozenset({"ready", "rebuilding", "paused"}),
    EngineAction.RESUME: frozenset({"paused", "draining", "drained", "ready"}),
    EngineAction.DRAIN: frozenset({"ready", "rebuilding", "paused", "draining", "drained"}),
    EngineAction.SLEEP: frozenset({"ready", "rebuilding", "paused", "draining", "drained", "asleep"}),
    EngineAction.WAKE: frozenset({"asleep", "waking", "ready"}),
    EngineAction.CLEAR_POISON: frozenset({"ready", "paused", "draining", "drained", "asleep"}),
}
"""States in which an action is taken. Elsewhere it is a conflict."""
SETTLED: Mapping[EngineAction, str] = {
    EngineAction.PAUSE: "paused",
    EngineAction.RESUME: "ready",
    EngineAction.DRAIN: "drained",
    EngineAction.SLEEP: "asleep",
    EngineAction.WAKE: "ready",
}
"""The state that an action leads to, now or once what runs has ended. Forgetting poison leads to none."""
OPERATED = frozenset({"paused", "draining", "drained", "asleep", "waking"})
"""States into which only an operator brings an engine, and in which it takes no new request."""


def objection(action: EngineAction, state: str) -> str | None:
    """Why `action` does not fit `state`, in words for the operator; None when it does."""
    if state in FITS[action]:
        return None
    if state == "stalled":
        return "a step of the engine has not returned; restart the gateway if it does not recover"
    if state == "asleep":
        return "the engine is asleep; wake it first"
    if state == "waking":
        return "the engine is waking up; try again when it is ready"
    if state in ("paused", "draining", "drained"):
        return f"the engine is {state}; resume it first"
    return f"the engine is {state}"


def no_engine() -> NotFound:
    return NotFound(
        "No engine of this gateway runs that model.",
        code="model_not_found",
        param="model",
        hint="GET /admin/v1/engines lists the engines; models of an upstream are operated there",
    )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine of this replica at one moment. Counters are since its start."""

    model: str
    state: str
    """loading, ready, paused, draining, drained, asleep, waking, rebuilding, stalled, failed or stopped."""
    stage: str
    percent: float
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Held blocks of all blocks, 0 to 1."""
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
    step_faults: int = 0
    restarts: int = 0
    poisoned: int = 0
    """Requests refused because equal ones had stopped the engine twice."""
    stalled_s: float = 0.0
    """How long the present step has run beyond the watchdog's limit."""


class EngineOperator(Protocol):
    """The engines of this process."""

    def reports(self) -> tuple[EngineReport, ...]:
        """In the order of the catalog; no I/O, no waiting."""
        ...

    def report(self, model: str) -> EngineReport | None:
        """None for a model that no engine of this process runs."""
        ...

    async def act(self, model: str, action: EngineAction) -> EngineReport:
        """Begin the action and wait for it a moment; what takes longer goes on by itself.

        Raises `NotFound`, `Conflict` (409 `engine_state`) or `Unavailable` when the engine does not react.
        """
        ...

    async def resume_paused(self) -> None:
        """Before the process ends: what a pause holds goes on. An engine that does not react is left alone."""
        ...
