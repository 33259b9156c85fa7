"""The identity of the kernels changes with what computes, and with nothing else."""

from __future__ import annotations

from kernels import dispatch
from kernels.contracts import Ops
from kernels.identity import kernels_sha256


def test_other_code_has_another_identity(cpu: Ops, reference: Ops) -> None:
    assert len(kernels_sha256(cpu)) == 64
    assert kernels_sha256(cpu) == kernels_sha256(dispatch.load("cpu", device="cpu"))
    assert kernels_sha256(cpu) != kernels_sha256(reference)


def test_a_promise_of_determinism_is_other_code(reference: Ops) -> None:
    assert kernels_sha256(reference) != kernels_sha256(dispatch.load("reference", device="cpu", deterministic=True))


def test_a_manifest_names_gpu_kernels() -> None:
    ops = dispatch.load("triton", device="meta")
    assert kernels_sha256(ops, "1" * 64) != kernels_sha256(ops, "2" * 64)
    assert kernels_sha256(ops, "1" * 64) != kernels_sha256(ops)
