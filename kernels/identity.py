"""Identity of the kernels that compute a model's answers: a hash of which back end runs each op, and of its code.

Two processes with the same hash run the same code on the same weights. It says nothing of the hardware's own rounding.
"""

from __future__ import annotations

import hashlib
import importlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from kernels.contracts import Ops

FOLDER = Path(__file__).parent


def kernels_sha256(ops: Ops, manifest_sha256: str | None = None) -> str:
    """`manifest_sha256` names GPU kernels that were compiled ahead; without it their sources and Triton do."""
    choices = ops.report()
    lines = sorted(f"{choice.op} {choice.backend}" for choice in choices)
    for backend in sorted({choice.backend for choice in choices}):
        lines.append(f"{backend} {_code_of(backend, manifest_sha256)}")
    return hashlib.sha256("\n".join([*lines, f"deterministic {ops.deterministic}"]).encode()).hexdigest()


def _code_of(backend: str, manifest_sha256: str | None) -> str:
    if backend == "cpu":
        # The library is one file per instruction set, compiler and source.
        library = importlib.import_module("kernels.cpu.library").lib()
        return hashlib.sha256(Path(library._name).read_bytes()).hexdigest()
    if backend == "triton":
        tiles = importlib.import_module("kernels.triton.tiles")
        return f"{manifest_sha256 or _version('triton') + ' ' + _sources('triton')} {tiles.tables_sha256()}"
    return f"torch {torch.__version__} {_sources(backend)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _sources(folder: str) -> str:
    digest = hashlib.sha256()
    for path in sorted((FOLDER / folder).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
