"""Loads a checkpoint once for each way to read it. The first, declared one is where its matrices are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.verification.conventions import conventions, effective
from engine.verification.decision import decide
from engine.verification.findings import findings
from engine.verification.matrices import MatrixChecks
from engine.verification.probe import ZeroBias, probe_ids, probe_loss
from engine.verification.report import ConventionReport, VerifyReport
from engine.weights.formats.format import CodedFormat, RawTensors
from engine.weights.loader import Checkpoint
from kernels.contracts import CodedWeight, Ops


class EffectiveWays:
    """Implements `CodedFormat`: reads as `checks` does, and finds the conventions that would make a difference."""

    def __init__(self, checks: MatrixChecks, ways: dict[str, CodedFormat]) -> None:
        self._checks, self._ways = checks, ways
        self.name, self.suffixes = checks.name, checks.suffixes
        self.found: set[str] = set()
        self._kinds: set[str] = set()

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return self._checks.holds(module, tensors)

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        weight = self._checks.read(module, shape, tensors)
        kind = self._checks.reports[-1].kind
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.found |= effective(self._ways, module, shape, tensors)
        return weight


def try_conventions(
    checkpoint: Checkpoint,
    declared: CodedFormat,
    ops: Ops,
    backend: str,
    progress: Callable[[str, int, int], None],
) -> VerifyReport:
    """`checkpoint` is opened again for each. Raises what loading raises."""
    path, ids = checkpoint.path, probe_ids(checkpoint)
    ways = conventions(declared)
    first, *others = ways
    checks = MatrixChecks(declared, ops)
    seen = EffectiveWays(checks, ways)
    with torch.inference_mode():
        progress(first, 0, len(ways))
        reports = [_tried(path, first, seen, ids, ops)]
        for done, name in enumerate(others, 1):
            if name in seen.found:
                progress(name, done, len(ways))
                reports.append(_tried(path, name, ways[name], ids, ops))
        progress("all conventions", len(ways), len(ways))
    real, decided_by = decide(reports, checkpoint.config.vocab_size, checks.zero_words)
    return VerifyReport(
        format=declared.name,
        declared=first,
        real=real,
        decided_by=decided_by,
        backend=backend,
        weights_sha256=checks.weights_sha256(),
        conventions=tuple(reports),
        matrices=tuple(checks.reports),
        findings=tuple(findings(first, real, decided_by, checks.reports)),
    )


def _tried(path: Path, name: str, format: CodedFormat, ids: Tensor, ops: Ops) -> ConventionReport:
    watched = ZeroBias(format)
    loss = probe_loss(path, watched, ids, ops)
    return ConventionReport(name, loss, watched.mean())
