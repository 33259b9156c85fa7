"""Replay past decisions against a proposed policy and list those that would come out differently. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.evaluator import evaluate
from gateway.flow.context import Client, RequestContext
from gateway.flow.values import Decision, Effect, ModelCard, PastDecision


@dataclass(frozen=True, slots=True)
class Flip:
    """`known_cause` is False when the policy in force would also decide otherwise than was recorded: then the
    difference lies in the time between, or in evidence that is not recorded, and not in the proposal."""

    past: PastDecision
    decision: Decision
    known_cause: bool


@dataclass(frozen=True, slots=True)
class Simulation:
    replayed: int
    skipped: int
    """Decisions on models that the catalog does not have any more."""
    flips: tuple[Flip, ...]

    def count(self, to: Effect) -> int:
        return sum(flip.decision.effect is to for flip in self.flips)


def simulate(candidate: Snapshot, in_force: Snapshot, past: Iterable[PastDecision]) -> Simulation:
    flips: list[Flip] = []
    replayed = skipped = 0
    for record in past:
        model = candidate.catalog.get(record.model) if record.model is not None else None
        if record.model is not None and model is None:
            skipped += 1
            continue
        replayed += 1
        decision = _replay(candidate, record, model)
        if decision.effect is not record.effect:
            now = _replay(in_force, record, model)
            flips.append(Flip(record, decision, known_cause=now.effect is record.effect))
    return Simulation(replayed, skipped, tuple(flips))


def _replay(snapshot: Snapshot, record: PastDecision, model: ModelCard | None) -> Decision:
    context = RequestContext(
        request_id=record.request_id,
        received_at=record.at,
        started_s=0.0,
        route="simulation",
        client=Client(ip=record.source_ip),
        data_class=record.data_class,
        purpose=record.purpose,
    )
    return evaluate(snapshot, record.principal, record.action, model, context)
