"""Finds the request that makes a whole step fail, so that only it ends. Knows steps, not sequences' states.

Safe to repeat: a step writes the same KV again and draws by (seed, position), and grammars advance only afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from engine.errors import EngineFault
from engine.step import Step, StepResult, Work

log = logging.getLogger(__name__)


class StepFailure(Exception):
    """A step failed and no single request is to blame: the runner or the engine itself is broken."""


class CulpritFault(EngineFault):
    """The step raises whenever this request is in it."""


def run_in_halves(execute: Callable[[Step], StepResult], step: Step) -> StepResult:
    """Run a failed step again, halving what fails down to single rows; those become `CulpritFault`s.

    At most about 2 log2(n) executions for one culprit among n. Raises nothing of its own: the caller decides what it
    means when every row is a culprit.
    """
    tokens: dict[int, Any] = {}
    prompt_logprobs: dict[int, Any] = {}
    pooled: dict[int, Any] = {}
    faults: dict[int, Exception] = {}
    freed = step.freed_slots
    faults.update((work.slot, _lost_pool()) for work in step.work if _is_half_pooled(work))
    again = tuple(work._replace(fresh=True) for work in step.work if not _is_half_pooled(work))
    pending = _halves(again) if len(again) > 1 else [again] if again else []
    while pending:
        work = pending.pop()
        try:
            part = execute(Step(step.id, work, freed))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a Rust extension is no `Exception`
            if len(work) > 1:
                pending.extend(_halves(work))
                continue
            log.exception("one request fails alone", extra={"request_id": work[0].sequence.request_id})
            fault = CulpritFault("a fault in the model step while this request ran", hint="send it again once")
            fault.__cause__ = error
            faults[work[0].slot] = fault
            continue
        freed = ()
        tokens.update(part.tokens)
        prompt_logprobs.update(part.prompt_logprobs)
        pooled.update(part.pooled)
        faults.update(part.faults)
    return StepResult(tokens, prompt_logprobs, pooled, faults)


def _is_half_pooled(work: Work) -> bool:
    """An embedding whose earlier chunks the runner has summed up: that sum may or may not hold the failed step."""
    return work.pool and work.num_computed > 0


def _lost_pool() -> EngineFault:
    return EngineFault("another request's fault interrupted this embedding", hint="send it again")


def _halves(work: tuple[Work, ...]) -> list[tuple[Work, ...]]:
    middle = len(work) // 2
    return [work[middle:], work[:middle]]
