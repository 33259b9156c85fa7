"""Shipping state of a spool: the last number of each run that is in Postgres, and the ends of runs that stopped.

Kept outside the database, so that what is deleted there is missed here, the newest run included. Reads beside living
writers, without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from gateway.audit.boot_reader import Checkpoint
from gateway.audit.ended import noted_ends
from gateway.audit.heads import Head
from gateway.audit.spool_dirs import boot_folders


@dataclass(frozen=True, slots=True)
class Shipped:
    """`upto`: the last number in Postgres, by boot. `ends`: heads of runs that shipped everything and stopped."""

    upto: Mapping[UUID, int]
    ends: tuple[Head, ...]


def read_shipped(spool_dir: Path) -> Shipped:
    """The commits before this call. Raises `OSError` when the spool, or a part of it, cannot be read."""
    for node in spool_dir.iterdir():
        if node.is_dir():
            next(node.iterdir(), None)  # a pattern passes over what it may not read
    upto: dict[UUID, int] = {}
    for folder in boot_folders(spool_dir):
        try:
            next(folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            continue  # its process ended while we look, and left word of that
        seq = Checkpoint.load(folder).seq
        if seq is not None:
            upto[UUID(folder.name)] = seq
    return Shipped(upto, tuple(noted_ends(spool_dir)))
