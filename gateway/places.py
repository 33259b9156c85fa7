"""Paths of this installation's own files. Creates nothing.

One answer for the gateway, the command line and local mode: who writes a spool and who reads it must look alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import ConfigError
from gateway.settings import Settings

SYSTEM_DATA_DIR = Path("/var/lib/esclusa")
"""As root, Postgres runs as another user, who must be able to walk to its files: never below a private home."""


def data_dir(settings: Settings, *, environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """`local.data_dir`, else as root `/var/lib/esclusa`, else `$XDG_DATA_HOME/esclusa` (`~/.local/share/esclusa`)."""
    if settings.local.data_dir is not None:
        return settings.local.data_dir.expanduser().absolute()
    if (os.geteuid() if uid is None else uid) == 0:
        return SYSTEM_DATA_DIR
    return _xdg(environ, "XDG_DATA_HOME", ".local/share")


def spool_dir(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> Path:
    """`audit.spool_dir` when set, else `spool` below the data folder."""
    configured = settings.audit.spool_dir
    return data_dir(settings, environ=environ) / "spool" if configured is None else configured.expanduser().absolute()


def snapshot_dir(settings: Settings, *, environ: Mapping[str, str] = os.environ) -> Path:
    """`access.snapshot_dir` when set, else `policies` below the data folder: the last good policy of this replica."""
    configured = settings.access.snapshot_dir
    if configured is None:
        return data_dir(settings, environ=environ) / "policies"
    return configured.expanduser().absolute()


def cache_dir(*, environ: Mapping[str, str] = os.environ) -> Path:
    """Downloads that can be made again (models): `$XDG_CACHE_HOME/esclusa` or `~/.cache/esclusa`."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = environ.get(variable, "")
    # The XDG specification says that a relative value must be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / fallback) / "esclusa"


def default_policy() -> Path:
    """`policies/default.yaml` of the checkout, else of the installed wheel."""
    package = Path(__file__).parent
    for candidate in (package.parent / "policies", package / "_assets" / "policies"):
        if (candidate / "default.yaml").is_file():
            return candidate / "default.yaml"
    raise ConfigError("no policy file", hint="set `access.policy_file`")
