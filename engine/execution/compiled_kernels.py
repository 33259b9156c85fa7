"""The GPU kernels of a loaded model: those compiled ahead are found in a folder, and those compiled late are counted.

Does nothing where no op runs on Triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import InvalidInput
from kernels.contracts import KernelError, Ops

if TYPE_CHECKING:
    from kernels.triton.guard import LateCompiles


class CompiledKernels:
    """Raises InvalidInput for a manifest that is absent, damaged or of another Triton, or where no op is Triton's."""

    def __init__(self, config: EngineConfig, ops: Ops) -> None:
        self.manifest_sha256: str | None = None
        self._guard: LateCompiles | None = None
        self._told = 0
        on_triton = any(choice.backend == "triton" for choice in ops.report())
        if config.kernel_manifest is not None:
            if not on_triton:
                raise InvalidInput(
                    "kernel_manifest",
                    config.kernel_manifest,
                    "no kernel of this model runs on a GPU",
                    hint="leave it out",
                )
            self.manifest_sha256 = _open(config.kernel_manifest)
        if on_triton:
            from kernels.triton.guard import LateCompiles

            self._guard = LateCompiles()
            self._guard.watch()

    def late(self) -> int:
        """Kernels that were compiled since the last call."""
        if self._guard is None:
            return 0
        count = self._guard.count
        since, self._told = count - self._told, count
        return since


def _open(folder: str) -> str:
    from kernels.triton.built_folder import use
    from kernels.triton.manifest import read

    try:
        document = read(Path(folder))
    except KernelError as error:
        hint = "build it with `esclusa kernels build`"
        raise InvalidInput("kernel_manifest", folder, str(error), hint=hint) from error
    use(Path(folder))
    return str(document["sha256"])
