"""Pausing, draining and resting the local engines, and what their states look like from outside.

Part of the local backend: it speaks to engines by their public face and imports none of them. Decides nothing about
rights; which action fits which state is `flow.operation`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

from gateway.errors import Conflict, Unavailable
from gateway.flow.operation import OPERATED, SETTLED, EngineAction, EngineReport, no_engine, objection

_log = logging.getLogger("esclusa.engine")
PATIENCE_S = 0.5
"""How long an answer waits for an action that may take minutes: draining, releasing, reading weights."""
REACTION_S = 10.0
"""An engine that has not even paused by then is stuck in a step."""


class Operated(Protocol):
    """The part of `engine.AsyncEngine` that this module uses."""

    @property
    def state(self) -> Any: ...
    @property
    def stalled_s(self) -> float: ...
    def stats(self) -> Any: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def drain(self) -> None: ...
    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...
    async def clear_poison(self) -> None: ...


class EngineOperations:
    """Implements `flow.operation.EngineOperator`.

    `stage_of` tells how far a model's first load is. `refused` is the engine's own error, raised where it declines.
    """

    def __init__(
        self,
        engines: Mapping[str, Operated],
        stage_of: Callable[[str], tuple[str, float]],
        refused: type[Exception],
    ) -> None:
        self._engines, self._stage_of, self._refused = engines, stage_of, refused
        self._under_way: dict[str, tuple[EngineAction, asyncio.Task[None]]] = {}

    def close(self) -> None:
        for _, task in self._under_way.values():
            task.cancel()

    def state(self, model: str) -> str:
        """As in `EngineReport.state`. `KeyError` for a model without an engine."""
        engine, (stage, _) = self._engines[model], self._stage_of(model)
        if stage in ("failed", "waiting"):
            return "failed" if stage == "failed" else "loading"
        state = str(engine.state.value)
        if engine.stalled_s > 0 and state not in ("failed", "stopped"):
            return "stalled"
        if state == "draining" and self._has_drained(model):
            return "drained"
        return "waking" if state == "asleep" and self._runs(model, EngineAction.WAKE) else state

    def require_accepting(self, model: str) -> None:
        """Raises `Unavailable` (503) while an operator keeps this engine from taking requests, or it is stuck."""
        state = self.state(model)
        if state == "stalled":
            raise Unavailable(
                "The engine of this model does not react.",
                code="engine_unavailable",
                hint="try again in a moment, or ask for another model",
                detail="stalled in a step",
            )
        if state in OPERATED:
            raise Unavailable(
                f"The engine of this model is {state}.",
                code="engine_unavailable",
                hint="an operator did this on purpose; try again later, or ask for another model",
                retry_after_s=30,
            )

    def reports(self) -> tuple[EngineReport, ...]:
        return tuple(self._report(model) for model in self._engines)

    def report(self, model: str) -> EngineReport | None:
        return self._report(model) if model in self._engines else None

    async def act(self, model: str, action: EngineAction) -> EngineReport:
        engine = self._engines.get(model)
        if engine is None:
            raise no_engine()
        state = self.state(model)
        against = objection(action, state)
        if against is not None:
            raise Conflict(f"`{action.value}` does not fit now: {against}.", code="engine_state")
        if state != SETTLED.get(action) and not self._runs(model, action):
            await self._begin(model, engine, action)
        return self._report(model)

    async def resume_paused(self) -> None:
        for model in self._engines:
            if self.state(model) == "paused":
                with suppress(Conflict, Unavailable):
                    await self.act(model, EngineAction.RESUME)

    # --------------------------------------------------------------------------------------------- private

    async def _begin(self, model: str, engine: Operated, action: EngineAction) -> None:
        steps: dict[EngineAction, Callable[[], Coroutine[Any, Any, None]]] = {
            EngineAction.PAUSE: engine.pause,
            EngineAction.RESUME: engine.resume,
            EngineAction.DRAIN: engine.drain,
            EngineAction.SLEEP: engine.sleep,
            EngineAction.WAKE: engine.wake,
            EngineAction.CLEAR_POISON: engine.clear_poison,
        }
        quick = action in (EngineAction.PAUSE, EngineAction.RESUME, EngineAction.CLEAR_POISON)
        task = asyncio.create_task(steps[action](), name=f"{action.value} {model}")
        if not quick:
            self._under_way[model] = (action, task)
        task.add_done_callback(lambda done: self._ended(model, action, done))
        done, _ = await asyncio.wait({task}, timeout=REACTION_S if quick else PATIENCE_S)
        if quick and not done:
            task.cancel()
            raise Unavailable(
                "The engine does not react.", code="engine_unavailable", hint="a step is stuck; look at `stalled_s`"
            )
        error = task.exception() if done and not task.cancelled() else None
        if isinstance(error, self._refused):
            raise Conflict(f"`{action.value}` was called off: the engine is {self.state(model)}.", code="engine_state")
        if error is not None:
            raise Unavailable(
                f"The engine could not {action.value}.",
                code="engine_unavailable",
                hint="the log has the reason",
                detail=type(error).__name__,
            )

    def _ended(self, model: str, action: EngineAction, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            _log.info("engine of %s: %s done, now %s", model, action.value, self.state(model))
        elif isinstance(error, self._refused):
            _log.info("engine of %s: %s was called off", model, action.value)
        else:
            _log.error("engine of %s: %s failed", model, action.value, exc_info=error)

    def _runs(self, model: str, action: EngineAction) -> bool:
        known = self._under_way.get(model)
        return known is not None and known[0] is action and not known[1].done()

    def _has_drained(self, model: str) -> bool:
        known = self._under_way.get(model)
        return known is not None and known[0] is EngineAction.DRAIN and known[1].done() and not known[1].cancelled()

    def _report(self, model: str) -> EngineReport:
        stats, (stage, percent), state = self._engines[model].stats(), self._stage_of(model), self.state(model)
        if state in ("waking", "rebuilding"):
            stage, percent = stats.stage, stats.percent
        return EngineReport(
            model=model,
            state=state,
            stage=stage,
            percent=percent,
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            kv_blocks=stats.kv.num_blocks,
            kv_blocks_free=stats.kv.free_blocks,
            prompt_tokens=stats.prompt_tokens,
            generated_tokens=stats.generated_tokens,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            preemptions=stats.preemptions,
            step_faults=stats.step_faults,
            restarts=stats.restarts,
            poisoned=stats.poisoned,
            stalled_s=stats.stalled_s,
        )
