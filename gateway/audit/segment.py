"""The spool's files: what a segment and a frame look like on disk, and the file a writer appends them to.

A segment is `header, frame*`. A header names the boot and the chain position it starts at; a frame is
`length, CRC-32C, body` and a body is `seq, prev_hash, hash, side length, side JSON, rec`. Numbers are little-endian.
The format needs no marker to be found again behind damage: the high bytes of a length and of a number are zero, and
neither JSON nor text holds a zero byte, so nothing a caller sends can look like the head of a frame. Knows no threads.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

import google_crc32c

MAGIC = b"ESCAUD01"
_HEADER = struct.Struct("<8s16sQ32s")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<II")
_BODY = struct.Struct("<Q32s32sI")
HEADER_BYTES = _HEADER.size + _CRC.size
HEAD_BYTES = _FRAME.size
FRAME_OVERHEAD = _FRAME.size + _BODY.size
MAX_FRAME_BYTES = 8 * 1024 * 1024
SUFFIX = ".log"

_crc32c = google_crc32c.value


@dataclass(frozen=True, slots=True)
class Frame:
    """One record as spooled. `end` is the offset behind it in its segment."""

    boot_id: UUID
    seq: int
    prev_hash: bytes
    hash: bytes
    side: bytes
    rec: bytes
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    boot_id: UUID
    first_seq: int
    prev_hash: bytes


class SegmentFile(Protocol):
    """The few things a spooler asks of a file, so that tests can make disks that fail. All may raise `OSError`."""

    def write(self, data: bytes) -> None: ...

    def write_durably(self, data: bytes) -> None:
        """`write` and `sync` in one."""
        ...

    def sync(self) -> None:
        """Durable when it returns. After an error the file must not be used for further records."""
        ...

    def truncate(self, size: int) -> None: ...

    def in_place(self) -> bool:
        """Whether the file still has its name: somebody may have removed it, or its folder, or mounted over it."""
        ...

    def size(self) -> int:
        """The content of the file, which somebody else may have truncated or appended to."""
        ...

    def content(self) -> bytes:
        """All of it, also when it has lost its name."""
        ...

    def close(self) -> None: ...


class DiskFile:
    """A new file, appended to; exists durably in its folder once constructed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sync_folder(path.parent)

    def write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        while written < len(data):
            written += os.write(self._fd, data[written:])

    def write_durably(self, data: bytes) -> None:
        # One system call where Linux offers it: the thread gives up the interpreter once instead of twice, and may
        # wait for it up to five milliseconds each time.
        if _RWF_DSYNC:
            written = os.pwritev(self._fd, [data], 0, _RWF_DSYNC)  # O_APPEND: the offset does not count
            if written == len(data):
                return
            data = data[written:]
        self.write(data)
        self.sync()

    def sync(self) -> None:
        _datasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def in_place(self) -> bool:
        try:
            named = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(named, os.fstat(self._fd))

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def content(self) -> bytes:
        pieces: list[bytes] = []
        position = 0
        while piece := os.pread(self._fd, 1024 * 1024, position):
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self._fd)


_datasync = getattr(os, "fdatasync", os.fsync)
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode_header(boot_id: UUID, first_seq: int, prev_hash: bytes) -> bytes:
    header = _HEADER.pack(MAGIC, boot_id.bytes, first_seq, prev_hash)
    return header + _CRC.pack(_crc32c(header))


def encode_frame(seq: int, prev_hash: bytes, own_hash: bytes, side: bytes, rec: bytes) -> bytes:
    body = b"%b%b%b" % (_BODY.pack(seq, prev_hash, own_hash, len(side)), side, rec)
    return _FRAME.pack(len(body), _crc32c(body)) + body


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:010d}{SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the segments in a boot's folder, oldest first."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit())


def decode_header(raw: bytes) -> Header | None:
    """None for what is cut, damaged, or of another version of this format."""
    if len(raw) < HEADER_BYTES or _CRC.unpack_from(raw, _HEADER.size)[0] != _crc32c(raw[: _HEADER.size]):
        return None
    magic, boot, first_seq, prev_hash = _HEADER.unpack_from(raw)
    return None if magic != MAGIC else Header(UUID(bytes=boot), first_seq, prev_hash)


def body_length(head: bytes, room: int) -> int | None:
    """The length of the body behind this frame head; None when no frame begins like this with `room` bytes left."""
    if len(head) < HEAD_BYTES:
        return None
    length: int = _FRAME.unpack_from(head)[0]
    return length if _BODY.size <= length <= min(MAX_FRAME_BYTES, room - HEAD_BYTES) else None


def decode_frame(boot_id: UUID, head: bytes, body: bytes, end: int) -> Frame | None:
    """None when the checksum fails."""
    length, checksum = _FRAME.unpack_from(head)
    if len(body) != length or _crc32c(body) != checksum:
        return None
    seq, prev_hash, own_hash, side_length = _BODY.unpack_from(body)
    split = _BODY.size + side_length
    return Frame(
        boot_id=boot_id,
        seq=seq,
        prev_hash=prev_hash,
        hash=own_hash,
        side=body[_BODY.size : split],
        rec=body[split:],
        end=end,
    )
