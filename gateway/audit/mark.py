"""The last position that a run has written, kept beside its segments: tells a torn tail from lost records.

Rewritten in place after each group and never synced: it outlives a kill -9 as it is, and after a power cut it may be
older than the segments, never newer than what was acknowledged. A mark that cannot be read tells nothing.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import google_crc32c

from gateway.audit.spool_types import Position

NAME = "written"
_MARK = struct.Struct("<8sIQQ")
_CRC = struct.Struct("<I")
_MAGIC = b"ESCMARK1"


class Mark:
    """The writer's side. An error of the disk is passed over: an old mark only finds less."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def put(self, position: Position) -> None:
        raw = _MARK.pack(_MAGIC, position.number, position.offset, position.seq)
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._descriptor, raw + _CRC.pack(google_crc32c.value(raw)), 0)

    def reopen(self) -> None:
        """With the next `put`: the folder is another one."""
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def read_mark(folder: Path) -> Position | None:
    try:
        raw = (folder / NAME).read_bytes()
    except OSError:
        return None
    if len(raw) != _MARK.size + _CRC.size or _CRC.unpack_from(raw, _MARK.size)[0] != google_crc32c.value(raw[:-4]):
        return None
    magic, number, offset, seq = _MARK.unpack_from(raw)
    return Position(number, offset, seq) if magic == _MAGIC else None
