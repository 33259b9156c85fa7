"""Reading a segment back, whatever happened to it: whole frames, and holes where bytes cannot be read as one.

Behind a hole the reading goes on with the next whole frame. A frame found by searching must fit its checksum and its
own SHA-256, so that damage never becomes a record. Knows files; not which record belongs where.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from gateway.audit.canonical import chain_hash
from gateway.audit.segment import HEAD_BYTES, HEADER_BYTES, Frame, Header, body_length, decode_frame, decode_header

WINDOW = 256 * 1024
"""Bytes searched in one go: a few milliseconds."""
BLOCK = 4096
"""What a disk that cannot read one byte cannot read as a whole."""

# Length below 16 MiB, checksum, number below 2**40 and not 0. Looks ahead only, so that no start is passed over.
_HEAD = re.compile(rb"(?s)(?=..[\x00-\x80]\x00.{4}(?!\x00{5}).{5}\x00{3})")
_HEAD_SPAN = HEAD_BYTES + 8


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, end) of a segment in which no whole frame was found."""

    start: int
    end: int


def read_header(path: Path) -> Header | None:
    with path.open("rb") as file:
        return decode_header(_read(file.fileno(), HEADER_BYTES, 0))


def read_pieces(path: Path, boot_id: UUID, offset: int, *, end: int | None = None) -> Iterator[Frame | Hole]:
    """Everything from `offset` (0, or the `end` of an earlier frame) to the file's end, or to `end`.

    A damaged header is a hole too; the boot is known from elsewhere. Raises `FileNotFoundError`.
    """
    with path.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        end = size if end is None else min(end, size)
        position = offset
        if position < HEADER_BYTES:
            position = HEADER_BYTES
            if decode_header(_read(descriptor, HEADER_BYTES, 0)) is None:
                if _frame_at(descriptor, boot_id, HEADER_BYTES, end) is None:
                    position = 0
                else:
                    yield Hole(0, HEADER_BYTES)
        while position < end:
            frame = _frame_at(descriptor, boot_id, position, end)
            if frame is None:
                behind = _next_frame(descriptor, boot_id, position + 1, end)
                yield Hole(position, behind)
                position = behind
            else:
                yield frame
                position = frame.end


def first_frame(path: Path, boot_id: UUID) -> Frame | None:
    return next((piece for piece in read_pieces(path, boot_id, 0) if isinstance(piece, Frame)), None)


def _frame_at(descriptor: int, boot_id: UUID, position: int, end: int) -> Frame | None:
    head = _read(descriptor, HEAD_BYTES, position)
    length = body_length(head, end - position)
    if length is None:
        return None
    start = position + HEAD_BYTES
    return decode_frame(boot_id, head, _read(descriptor, length, start), start + length)


def _next_frame(descriptor: int, boot_id: UUID, position: int, end: int) -> int:
    """The offset of the next whole frame; `end` when there is none."""
    while position < end:
        window = _read(descriptor, min(WINDOW + _HEAD_SPAN - 1, end - position), position)
        for found in _HEAD.finditer(window):
            at = position + found.start()
            frame = _frame_at(descriptor, boot_id, at, end)
            if frame is not None and frame.hash == chain_hash(frame.prev_hash, frame.seq, frame.rec):
                return at
        position += WINDOW
    return end


def _read(descriptor: int, count: int, position: int) -> bytes:
    """Like `os.pread`; blocks that the disk cannot read come back as zeros, which is no frame."""
    try:
        return os.pread(descriptor, count, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces: list[bytes] = []
    while count > 0:
        step = min(count, BLOCK - position % BLOCK)
        try:
            pieces.append(os.pread(descriptor, step, position))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            pieces.append(bytes(step))
        position, count = position + step, count - step
    return b"".join(pieces)
