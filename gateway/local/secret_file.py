"""Secrets that local mode makes for itself: random, written once, readable by this user only. Knows no meaning."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from gateway.errors import ConfigError


def made_once(path: Path, make: Callable[[], str]) -> str:
    """The text of `path`, made on first use. Blocking.

    Of several processes that start at once the first wins, and all use its text. Raises `ConfigError` when it cannot
    be used or when others may read it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            write_once(path, make().encode("ascii"), 0o600, replace=False)
        require_private(path)
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"a secret of local mode cannot be used: {error.strerror}", file=str(path)) from None


def require_private(path: Path) -> None:
    """Raises `ConfigError` when others may read it, `OSError` when it is not there."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(
            f"a secret of local mode has mode {mode:04o}; expected 0600",
            file=str(path),
            hint="chmod 600 it, or delete the folder to make new ones (what was issued before stops working)",
        )


def write_once(path: Path, content: bytes, mode: int, *, replace: bool) -> bool:
    """Write a whole file or none. False when it is already there and not to be replaced."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
        if replace:
            Path(temporary).replace(path)
            return True
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    finally:
        Path(temporary).unlink(missing_ok=True)
