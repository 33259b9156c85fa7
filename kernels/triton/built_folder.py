"""Finds kernels that were compiled ahead, wherever their folder lies now.

Triton notes the absolute path of each file that it compiles, and compiles again where that path is gone: an image that
copies the folder out of its build stage would. Here a file is looked for beside the note. What no folder has goes to
Triton's own cache folder, so that a folder of built kernels may be read-only and stays what its manifest says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import triton
from triton.runtime.cache import FileCacheManager


class BuiltKernels(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    folders: ClassVar[tuple[Path, ...]] = ()
    """One for each model that is served by this process, absolute."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        built = next((folder / key for folder in self.folders if (folder / key).is_dir()), None)
        if built is None or override or dump:
            super().__init__(key, override, dump)
            return
        self.key = key
        self.cache_dir = str(built)
        self.lock_path = str(built / "lock")

    def get_group(self, filename: str) -> dict[str, str] | None:
        """name -> path of the files of one kernel; None where one of them is missing."""
        folder = Path(self.cache_dir)
        try:
            names = json.loads((folder / f"__grp__{filename}").read_text(encoding="utf-8"))["child_paths"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        found = {name: str(folder / name) for name in names}
        return found if all(Path(path).is_file() for path in found.values()) else None


def use(folder: Path) -> None:
    """From now on this process finds its kernels in `folder` too."""
    absolute = folder.resolve()
    if absolute not in BuiltKernels.folders:
        BuiltKernels.folders = (*BuiltKernels.folders, absolute)
    triton.knobs.cache.manager_class = BuiltKernels
