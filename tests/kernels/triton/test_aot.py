"""Kernels compiled ahead for every architecture: within its limits, without a spill, found again by a launch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernels.contracts import KernelError
from kernels.triton import manifest
from kernels.triton.target import ARCHITECTURES, MAX_REGISTERS
from tests.fakes.tiny_model import write_tiny_model

ARCHES = "sm_80,sm_89,sm_90,sm_100"
COUNTING = """
import sys
from pathlib import Path
import triton
from kernels.triton.built_folder import use
from kernels.triton.guard import LateCompiles
from kernels.triton.aot import assumed_driver
from kernels.triton.launch import Schedule
from kernels.triton.rms_norm import normalize_rows, row_constants
from kernels.triton.target import ARCHITECTURES
from triton.runtime.jit import MockTensor
import torch
triton.knobs.cache.dir = sys.argv[2]
use(Path(sys.argv[1]))
guard = LateCompiles()
guard.watch()
x = MockTensor(torch.bfloat16)
for width in (128, 49):
    constants, schedule = row_constants(width, width)
    with assumed_driver(ARCHITECTURES["sm_90"]):
        normalize_rows.function.warmup(
            grid=(1,), x=x, residual=None, weight=x, out=x, eps=1e-6, offset=0.0, **constants,
            num_warps=schedule.num_warps, num_stages=schedule.num_stages,
        )
    print(guard.count)
"""


def compiling() -> dict[str, str]:
    """The environment of a process that compiles: tests of this suite interpret."""
    return os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}


def esclusa(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", "kernels", *arguments]
    return subprocess.run(command, env=compiling(), capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    # Heads as wide as real ones: those of 8 numbers spill a register on sm_100.
    write_tiny_model(path, hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=1)
    return path


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    limits = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--jobs", "1")
    done = esclusa("build", "--model", str(model), "--arch", ARCHES, "--out", str(folder), *limits)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_kernel_stays_within_the_limits_of_its_architecture(built: Path) -> None:
    rows = manifest.read(built)["kernels"]
    assert {row["architecture"] for row in rows} == set(ARCHES.split(","))
    for row in rows:
        assert row["spill_bytes"] == 0, row
        assert row["registers"] <= MAX_REGISTERS
        assert row["shared_bytes"] <= ARCHITECTURES[row["architecture"]].shared_bytes
    attention = [row for row in rows if row["kernel"] == "paged_attention.attend"]
    assert attention
    assert all(row["tensor_cores"] for row in attention)
    assert {"rms_norm.normalize_rows", "rope.rotate_heads", "sample.draw_tokens"} <= {row["kernel"] for row in rows}


def test_the_manifest_names_what_was_compiled(built: Path) -> None:
    done = esclusa("verify", str(built), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == manifest.read(built)["sha256"]


def test_spills_are_refused_by_name_where_asked(built: Path, tmp_path: Path) -> None:
    assert esclusa("verify", str(built), "--no-spills").returncode == 0
    folder = tmp_path / "spilling"
    shutil.copytree(built, folder)
    document = json.loads((folder / manifest.FILE).read_text())
    row = next(row for row in document["kernels"] if row["kernel"] == "sample.draw_tokens")
    row["spill_bytes"] = 24
    document["sha256"] = manifest.manifest_sha256(document["kernels"])
    (folder / manifest.FILE).write_text(json.dumps(document))
    assert esclusa("verify", str(folder)).returncode == 0
    done = esclusa("verify", str(folder), "--no-spills")
    assert done.returncode == 1
    assert f"sample.draw_tokens for {row['architecture']} 24 B a thread" in done.stderr


def test_a_changed_manifest_is_found(built: Path, tmp_path: Path) -> None:
    document = json.loads((built / manifest.FILE).read_text())
    document["kernels"][0]["registers"] += 1
    (tmp_path / manifest.FILE).write_text(json.dumps(document))
    with pytest.raises(KernelError, match="was changed"):
        manifest.read(tmp_path)
    done = esclusa("verify", str(tmp_path))
    assert done.returncode == 1
    assert "esclusa kernels build" in done.stderr
    (tmp_path / manifest.FILE).write_text("[]")
    with pytest.raises(KernelError, match="cannot be read"):
        manifest.read(tmp_path)


def test_a_launch_finds_what_was_compiled_in_a_folder_that_was_moved_and_what_was_not_is_counted(
    built: Path, tmp_path: Path
) -> None:
    # Images copy the folder out of a build stage whose paths are gone by then, and mount it for reading.
    moved, cache = tmp_path / "moved", tmp_path / "cache"
    away = built.rename(built.with_name("away"))
    try:
        shutil.copytree(away, moved)
        before = sorted(moved.rglob("*"))
        command = [sys.executable, "-c", COUNTING, str(moved), str(cache)]
        done = subprocess.run(command, env=compiling(), capture_output=True, text=True, check=False)
    finally:
        away.rename(built)
    assert done.stdout.split() == ["0", "1"], done.stderr
    assert sorted(moved.rglob("*")) == before
    assert list(cache.glob("*/normalize_rows.cubin"))


@pytest.mark.parametrize("damage", ["absent", "changed"])
def test_a_kernel_that_is_absent_or_changed_is_found_by_name(built: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(built, folder)
    assert manifest.read(folder) == manifest.read(built)
    cubin = next(folder.glob("*/rotate_heads.cubin"))
    if damage == "absent":
        cubin.unlink()
    else:
        cubin.write_bytes(cubin.read_bytes()[:-1] + b"x")
    with pytest.raises(KernelError, match=r"^1 of \d+ kernels of damaged are absent .* rope\.rotate_heads for sm_\d+$"):
        manifest.read(folder)


def test_what_cannot_be_built_is_said_by_name(model: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("--model", str(model), "--arch", "sm_70"), "sm_70"),
        (("--model", str(tmp_path / "absent")), "absent"),
        (("--model", str(model), "--dtype", "int8"), "bfloat16"),
    ):
        done = esclusa("build", *arguments, "--out", str(tmp_path / "out"))
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
