"""The identity of the kernels changes with what computes, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    pytest.importorskip("triton")
    ops = dispatch.load("triton", device="meta")
    assert kernels_sha256(ops, "1" * 64) != kernels_sha256(ops, "2" * 64)
    assert kernels_sha256(ops, "1" * 64) != kernels_sha256(ops)


def test_other_tiles_of_products_are_other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A sum of other parts rounds differently, whether kernels were compiled ahead or not.
    pytest.importorskip("triton")
    ops = dispatch.load("triton", device="meta")
    shipped = [kernels_sha256(ops, manifest) for manifest in (None, "1" * 64)]
    monkeypatch.setenv("ESCLUSA_KERNEL_TABLES", str(tmp_path))
    assert [kernels_sha256(ops, manifest) for manifest in (None, "1" * 64)] == shipped
    (tmp_path / "product.sm_90.json").write_text("{}")
    measured = [kernels_sha256(ops, manifest) for manifest in (None, "1" * 64)]
    assert set(measured).isdisjoint(shipped)
