"""`esclusa kernels`: compile the GPU kernels of a model ahead of serving, so that no request waits for a compiler."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from engine import KernelManifest

app = typer.Typer(help="GPU kernels: compile them ahead and check what was compiled.", no_args_is_help=True)
FOLDER = Path("kernels-built")


@app.command("build")
def build(
    model: str = typer.Option(..., help="Model directory or .gguf file; only quantized weights are read."),
    arch: str = typer.Option("sm_80,sm_89,sm_90,sm_100", help="GPU architectures, comma-separated."),
    out: Path = typer.Option(FOLDER, help="Folder of the kernels; a second run goes on where the first ended."),
    dtype: str = typer.Option("bfloat16", help="Of activations: bfloat16, float16 or float32."),
    quantization: str | None = typer.Option(None, help="As for `serve`."),
    kv_cache_dtype: str = typer.Option("auto", help="As for `serve`."),
    block_size: int = typer.Option(16, help="As for `serve`."),
    max_num_seqs: int = typer.Option(64, help="As for `serve`."),
    max_num_batched_tokens: int = typer.Option(2048, help="As for `serve`."),
    deterministic: bool = typer.Option(False, help="As for `serve`."),
    jobs: int = typer.Option(0, help="Processes; 0: one per core."),
    no_spills: bool = typer.Option(False, "--no-spills", help="Exit 1 when a kernel spills registers."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Compile every kernel that serving a model launches; no GPU is needed.

    Exit 1 when a kernel does not compile or needs more than its GPU has; spills of registers are reported, and with
    --no-spills they are such a fault.

    Example: esclusa kernels build --model ./llama --arch sm_80,sm_90 --out ./kernels-built
    """
    from engine import EngineConfig, EngineError, build_kernels

    if os.environ.pop("TRITON_INTERPRET", "0") == "1":
        print("TRITON_INTERPRET is ignored: kernels are compiled here", file=sys.stderr)
    started = time.monotonic()
    try:
        config = EngineConfig(
            model=model,
            dtype=dtype,  # type: ignore[arg-type]  # checked by the engine
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]  # checked by the engine
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            deterministic=deterministic,
        )
        names = [name.strip() for name in arch.split(",") if name.strip()]
        manifest = build_kernels(config, names, out, jobs or os.cpu_count() or 1, _progress)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed", "pip install 'esclusa[gpu]'")
    except EngineError as error:
        _fail(error.message, error.hint)
    _show(manifest, as_json)
    print(f"{len(manifest.kernels)} kernels in {out} after {time.monotonic() - started:.0f} s", file=sys.stderr)
    _refuse_spills(manifest, no_spills)


@app.command("verify")
def verify(
    folder: Path = typer.Argument(FOLDER, help="What `build` wrote."),
    no_spills: bool = typer.Option(False, "--no-spills", help="Exit 1 when a kernel spills registers."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Check a manifest and its kernels: whole, unchanged, and of the installed Triton. Exit 1 when they are not.

    Example: esclusa kernels verify ./kernels-built
    """
    from engine import EngineError, read_kernels

    try:
        manifest = read_kernels(folder)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed", "pip install 'esclusa[gpu]'")
    except EngineError as error:
        _fail(error.message, error.hint)
    _show(manifest, as_json)
    _refuse_spills(manifest, no_spills)


@app.command("tune")
def tune(
    offline: bool = typer.Option(False, "--offline", help="Rank by a model, without a GPU."),
    arch: str = typer.Option("sm_80,sm_89,sm_90,sm_100", help="With --offline: GPU architectures, comma-separated."),
    out: Path = typer.Option(Path("kernel-tables"), help="Folder of the tables; ESCLUSA_KERNEL_TABLES names it."),
    jobs: int = typer.Option(0, help="Processes that compile; 0: one per core."),
) -> None:
    """Choose the tiles of matrix products: those that spill are dropped, the others timed on this machine's GPU.

    Exit 1 without a GPU, unless --offline ranks them by memory, occupancy and waves. No model serves meanwhile.

    Example: esclusa kernels tune --offline --arch sm_90 --out ./kernel-tables
    """
    from engine import EngineError, tune_kernels

    if os.environ.pop("TRITON_INTERPRET", "0") == "1":
        print("TRITON_INTERPRET is ignored: kernels are compiled here", file=sys.stderr)
    names = [name.strip() for name in arch.split(",") if name.strip()]
    try:
        written = tune_kernels(names, out, jobs or os.cpu_count() or 1, not offline, _progress)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed", "pip install 'esclusa[gpu]'")
    except EngineError as error:
        _fail(error.message, error.hint)
    for path in written:
        print(path)


def _progress(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{done} of {total}  {what}", end="\n" if done == total else "", file=sys.stderr)
    elif done % 25 == 0 or done == total:
        print(f"{done} of {total} kernels compiled", file=sys.stderr)


def _show(manifest: KernelManifest, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(manifest), indent=2))
        return
    print(f"manifest {manifest.sha256}")
    for name, count in sorted(Counter(row.architecture for row in manifest.kernels).items()):
        rows = [row for row in manifest.kernels if row.architecture == name]
        registers, shared = max(row.registers for row in rows), max(row.shared_bytes for row in rows)
        spills = sum(row.spill_bytes for row in rows)
        print(f"{name:8}{count:5} kernels, at most {registers} registers, {shared:>7} B shared, {spills} B spilled")
        for row in rows:
            if row.spill_bytes:
                print(f"  spills {row.spill_bytes} B a thread: {row.kernel}")


def _refuse_spills(manifest: KernelManifest, refused: bool) -> None:
    spilling = [row for row in manifest.kernels if row.spill_bytes]
    if refused and spilling:
        named = "; ".join(f"{row.kernel} for {row.architecture} {row.spill_bytes} B a thread" for row in spilling[:5])
        _fail(f"{len(spilling)} kernels spill registers: {named}", "`esclusa kernels tune` ranks other tiles")


def _fail(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    raise typer.Exit(1)
