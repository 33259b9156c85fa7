"""The kernels of a model compiled ahead of serving: for `esclusa kernels`, without a GPU and without its weights.

Knows which model and settings; what a manifest is and how kernels compile is in `kernels.triton`. Nothing here is
imported where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import EngineFault, InvalidInput

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One compiled kernel. Bytes of spills are per thread, of shared memory per block."""

    kernel: str
    """Name, types and constants."""
    architecture: str
    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class KernelManifest:
    sha256: str
    kernels: tuple[KernelRow, ...]


Progress = Callable[[int, int, str], None]
"""Called with (kernels done, kernels in all, the last one)."""


def build_kernels(
    config: EngineConfig, architectures: Sequence[str], folder: Path, jobs: int, progress: Progress
) -> KernelManifest:
    """Compile every kernel that serving `config.model` launches on `architectures` and write the manifest.

    Raises what opening the checkpoint raises, InvalidInput for an unknown architecture or dtype, EngineFault that names
    a kernel which does not compile or is beyond the limits of its architecture.
    """
    from engine.execution.device import DTYPES as TORCH_DTYPES
    from engine.execution.kernel_variants import variants_of
    from engine.weights.loader import open_checkpoint
    from engine.weights.untrusted import model_files
    from kernels.contracts import KernelError
    from kernels.triton.aot import Compiled, describe
    from kernels.triton.manifest import as_document, build, manifest_sha256
    from kernels.triton.target import architecture

    if config.dtype not in DTYPES:
        raise InvalidInput("dtype", config.dtype, f"must be one of {', '.join(DTYPES)}: there is no GPU to ask")
    try:
        targets = [architecture(name) for name in dict.fromkeys(architectures)]
    except KernelError as error:
        raise InvalidInput("arch", ",".join(architectures)[:80], str(error)) from error
    wanted = []
    with model_files(Path(config.model).name):
        for target in targets:
            checkpoint = open_checkpoint(config.model)
            checkpoint.shapes_only = True
            found = variants_of(checkpoint, config, TORCH_DTYPES[config.dtype], target)
            wanted += [(variant, target) for variant in sorted(found, key=describe)]
    done = 0

    def on_compiled(one: Compiled) -> None:
        nonlocal done
        done += 1
        progress(done, len(wanted), f"{one.variant.kernel} {one.architecture}")

    try:
        compiled = build(wanted, folder, jobs, on_compiled)
    except KernelError as error:
        raise EngineFault(str(error), hint="report it with the model's config.json") from error
    rows = tuple(
        KernelRow(describe(one.variant), one.architecture, one.registers, one.spill_bytes, one.shared_bytes)
        for one in compiled
    )
    return KernelManifest(manifest_sha256(as_document(compiled)["kernels"]), rows)


def tune_kernels(
    architectures: Sequence[str], folder: Path, jobs: int, measure: bool, progress: Progress
) -> list[Path]:
    """Write a table of tiles for each of `architectures` to `folder`; the files.

    Candidates are compiled and ranked by a model. With `measure` they are timed on this machine's GPU, whose
    architecture alone is tuned then. Raises InvalidInput for an architecture that is unknown or has no data of its
    chip, EngineFault where a form has no tile or there is no GPU to measure on.
    """
    import torch

    from kernels.contracts import KernelError
    from kernels.triton.target import architecture, capability
    from kernels.triton.tiles import file_name
    from kernels.triton.tuning import CHIPS, as_text, tune

    device = torch.device("cuda")
    if measure and not torch.cuda.is_available():
        raise EngineFault("this machine has no GPU to measure on", hint="pass `--offline` to rank without one")
    names = [f"sm_{capability(device)}"] if measure else list(dict.fromkeys(architectures))
    written = []
    for name in names:
        if name not in CHIPS:
            raise InvalidInput("arch", name[:40], f"must be one of {', '.join(CHIPS)}")
        target = architecture(name)
        try:
            table = tune(target, jobs, progress)
        except KernelError as error:
            raise EngineFault(str(error), hint="report it with the version of Triton") from error
        if measure:
            from kernels.triton.measuring import measured

            table = measured(table, device, progress)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(target.capability)
        path.write_text(as_text(table), encoding="utf-8")
        written.append(path)
    return written


def read_kernels(folder: Path) -> KernelManifest:
    """The manifest of a folder. Raises EngineFault where it is absent, damaged, or of another Triton."""
    from kernels.contracts import KernelError
    from kernels.triton.manifest import read

    try:
        document = read(folder)
    except KernelError as error:
        raise EngineFault(str(error), hint="build it with `esclusa kernels build`") from error
    rows = tuple(
        KernelRow(row["kernel"], row["architecture"], row["registers"], row["spill_bytes"], row["shared_bytes"])
        for row in document["kernels"]
    )
    return KernelManifest(document["sha256"], rows)
