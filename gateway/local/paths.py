"""Folders on disk: made on first use, with rights that let the private Postgres walk to its files."""

from __future__ import annotations

from pathlib import Path

from gateway.places import cache_dir, data_dir, snapshot_dir, spool_dir

__all__ = ["cache_dir", "data_dir", "ensure_dir", "snapshot_dir", "spool_dir"]


def ensure_dir(path: Path, mode: int = 0o711) -> Path:
    """Create `path` and the missing parents with `mode`; what already exists keeps the rights it has."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    return path
