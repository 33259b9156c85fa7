"""The kernel benchmark: every row carries both ceilings, and the filter holds."""

from __future__ import annotations

import pytest

from kernels import bench


def test_rows_compare_with_the_measured_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MINIMUM_S", 0.0)
    rows = bench.bench_kernels(["reference"], ops=["rms_norm", "greedy", "kv_write"])
    assert {row.op for row in rows} == {"rms_norm", "greedy", "kv_write"}
    for row in rows:
        assert row.microseconds > 0
        assert row.gb_per_s > 0
        assert row.of_copy > 0
        assert set(row.as_dict()) >= {"op", "backend", "case", "dtype", "gb_per_s", "gflop_per_s", "of_matmul"}
