"""The manifest of kernels: every variant that a model needs on some architectures, compiled, with what it takes.

Its hash names the code that computes an answer: the cubins themselves, so that another compiler is another hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton

from kernels.contracts import KernelError
from kernels.triton.aot import Compiled, compile_variant, describe
from kernels.triton.launch import Variant
from kernels.triton.target import Architecture

FILE = "manifest.json"
VERSION = 1
OnCompiled = Callable[[Compiled], None]


def build(
    variants: Iterable[tuple[Variant, Architecture]], folder: Path, jobs: int, on_compiled: OnCompiled
) -> list[Compiled]:
    """Compile all into `folder`, where a second call finds what the first has done, and write the manifest.

    Raises KernelError that names the variants which do not compile or are beyond the limits of their architecture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(variants)
    compiled: list[Compiled] = []
    faults: list[str] = []
    # Triton keeps its state of compiling in the process, and one process uses one core.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _in_folder, (str(folder),)) as pool:
        pending = {pool.submit(compile_variant, variant, target): target for variant, target in wanted}
        for done in as_completed(pending):
            try:
                one = done.result()
            except KernelError as error:
                faults.append(str(error))
                continue
            compiled.append(one)
            faults += [f"{describe(one.variant)} on {one.architecture} {f}" for f in one.faults(pending[done])]
            on_compiled(one)
    if faults:
        raise KernelError(f"{len(faults)} kernels cannot be used: " + "; ".join(sorted(faults)[:5]))
    compiled.sort(key=lambda one: (one.architecture, describe(one.variant)))
    temporary = folder / f"{FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(as_document(compiled), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / FILE)
    return compiled


def _in_folder(folder: str) -> None:
    triton.knobs.cache.dir = folder


def as_document(compiled: Sequence[Compiled]) -> dict[str, Any]:
    rows = [
        {
            "kernel": one.variant.kernel,
            "architecture": one.architecture,
            "signature": dict(one.variant.signature),
            "constants": dict(one.variant.constants),
            "num_warps": one.variant.num_warps,
            "num_stages": one.variant.num_stages,
            "registers": one.registers,
            "spill_bytes": one.spill_bytes,
            "shared_bytes": one.shared_bytes,
            "tensor_cores": list(one.tensor_cores),
            "sha256": one.sha256,
        }
        for one in compiled
    ]
    return {"version": VERSION, "triton": triton.__version__, "sha256": manifest_sha256(rows), "kernels": rows}


def manifest_sha256(rows: Sequence[dict[str, Any]]) -> str:
    lines = sorted(json.dumps(row, sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder. Raises KernelError where there is none, its hash is not that of its rows, a kernel that
    it lists is absent or changed, or another Triton built it."""
    path = folder / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows, stated = document["kernels"], document["sha256"]
        found = manifest_sha256(rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelError(f"{path.name} of {folder.name} cannot be read: {error}") from error
    if found != stated:
        raise KernelError(f"{path.name} of {folder.name} was changed: its rows have the hash {found}, not {stated}")
    if document.get("triton") != triton.__version__:
        raise KernelError(
            f"{folder.name} was built by Triton {document.get('triton')}, this is {triton.__version__}: build it again"
        )
    lost = without_file(rows, cubin_hashes(folder))
    if lost:
        raise KernelError(
            f"{len(lost)} of {len(rows)} kernels of {folder.name} are absent or were changed, the first is {lost[0]}"
        )
    return dict(document)


def cubin_hashes(folder: Path) -> frozenset[str]:
    return frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*/*.cubin"))


def without_file(rows: Sequence[dict[str, Any]], hashes: frozenset[str]) -> list[str]:
    """The rows whose cubin has none of `hashes`."""
    return [f"{row['kernel']} for {row['architecture']}" for row in rows if row["sha256"] not in hashes]
