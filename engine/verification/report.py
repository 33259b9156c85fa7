"""Results of verifying a quantized checkpoint. Values only, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """One quantized matrix."""

    module: str
    kind: str
    """Width, group and order, as in `int4 g128`."""
    shape: tuple[int, int]
    """Outputs, inputs."""
    nbytes: int
    changed: tuple[str, ...]
    """Tensors that were not the same, bit for bit, after unpacking and packing again. Empty: all were."""
    error: float
    """Norm of what the back end's product differs by from the dense twin's, over the norm of the latter."""
    bound: float
    """What `error` may be at most."""

    @property
    def good(self) -> bool:
        return not self.changed and self.error <= self.bound


@dataclass(frozen=True, slots=True)
class ConventionReport:
    """One way to read the file, and how well the model then knows the probe text."""

    name: str
    loss: float
    """Mean negative log-likelihood of a token, in nats; infinity where it was no number."""
    bias: float | None
    """Mean of (code - zero point), in steps of the codes: near 0 where zero points are right. None: no integers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. `code` is stable, `message` and `hint` are for people."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    format: str
    declared: str
    """The convention that the configuration says; the first of `conventions`."""
    real: str | None
    """The one that the file behaves like; None where neither the text nor the weights tell."""
    decided_by: str
    """`text`, `weights`, `words` (of zero points that are all the same), or `nothing`."""
    backend: str
    weights_sha256: str
    """Of every quantized matrix as float32, in the order of loading: equal where two files hold the same numbers."""
    conventions: tuple[ConventionReport, ...]
    matrices: tuple[MatrixReport, ...]
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        return not self.findings
