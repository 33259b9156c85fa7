"""One boot's folder, read in order: batches of frames up to a position, and what is missing between them.

The numbers of a chain have no gap, so whatever is unreadable shows as missing numbers: between two frames, before the
next segment, or before what the writer says it wrote. Only bytes for which no number is missing may be passed over: the
rest of a group that was given up, or the torn tail of a group that was never acknowledged. Reads files, writes the
checkpoint, deletes what was shipped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import google_crc32c
import orjson

from gateway.audit.canonical import parse_json
from gateway.audit.damage import Damage
from gateway.audit.mark import read_mark
from gateway.audit.segment import HEADER_BYTES, Frame, Header, segment_numbers, segment_path
from gateway.audit.segment_reader import Hole, first_frame, read_header, read_pieces
from gateway.audit.spool_types import Position

log = logging.getLogger("esclusa.audit")

BATCH_BYTES = 16 * 1024 * 1024
"""Encrypted content makes frames large: a batch ends with the frame that passes this."""
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a boot's folder has been shipped; kept in the folder. `seq`: the last number, None where not known."""

    number: int = 0
    offset: int = 0
    seq: int | None = None

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        try:
            kept = parse_json((folder / CHECKPOINT).read_bytes())
            found = cls(int(kept["number"]), int(kept["offset"]), kept.get("seq"))
            if "crc" in kept and kept["crc"] != found._crc():
                raise ValueError("the checkpoint is damaged")
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Shipping again from the start changes nothing: rows that are there already are left alone.
            log.warning("the checkpoint of boot %s cannot be read, all is shipped again: %s", folder.name, error)
            return cls()
        return found

    def save(self, folder: Path) -> None:
        partial = folder / f"{CHECKPOINT}.new"
        kept = {"number": self.number, "offset": self.offset, "seq": self.seq, "crc": self._crc()}
        partial.write_bytes(orjson.dumps(kept))
        partial.replace(folder / CHECKPOINT)

    def _crc(self) -> int:
        return int(google_crc32c.value(f"{self.number} {self.offset} {self.seq}".encode()))


@dataclass(frozen=True, slots=True)
class Batch:
    frames: list[Frame]
    damages: list[Damage]
    behind: Checkpoint


class BootReader:
    """Of a live boot up to a position, of a dead one up to the end. One user at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.boot_id = UUID(folder.name)
        self.checkpoint = Checkpoint.load(folder)
        self._headers: dict[int, Header] = {}

    @property
    def folder(self) -> Path:
        return self._folder

    def begin(self) -> None:
        """A new boot: says that nothing was shipped yet, which a missing checkpoint does not. Raises `OSError`."""
        self.checkpoint = Checkpoint(seq=0)
        self.checkpoint.save(self._folder)

    def advance(self, behind: Checkpoint) -> None:
        """Persist the checkpoint and delete the segments it has passed."""
        behind.save(self._folder)
        self.checkpoint = behind
        for number in segment_numbers(self._folder):
            if number < behind.number:
                segment_path(self._folder, number).unlink(missing_ok=True)
                self._headers.pop(number, None)

    def batch(self, upto: Position | None, limit: int) -> Batch:
        """Up to `limit` frames and what is damaged among them. Blocks: milliseconds, longer where it must search.

        Raises `FileNotFoundError` while the segment of a live boot that `upto` names is not there.
        """
        reached = self.checkpoint
        if upto is not None and (reached.number, reached.offset) >= (upto.number, upto.offset):
            return Batch([], [], reached)
        numbers = [number for number in segment_numbers(self._folder) if number >= reached.number]
        if upto is not None:
            numbers = [number for number in numbers if number <= upto.number]
        if upto is not None and upto.number not in numbers:
            raise FileNotFoundError(2, "a segment is missing", str(segment_path(self._folder, upto.number)))
        walk = _Walk(self.boot_id, reached, limit)
        for number, following in pairwise([*numbers, None]):
            assert number is not None
            path = segment_path(self._folder, number)
            if number > walk.behind.number:
                walk.enter(number, self._header(number))
            end = upto.offset if upto is not None and number == upto.number else None
            bound = None if following is None else self._first_seq(following)
            if not walk.read(path, end, bound):
                return walk.batch()
            if following is not None:
                walk.leave(path.stat().st_size, bound)
            elif upto is not None:
                walk.end_at(upto)
            else:
                walk.end_of_dead(path.stat().st_size, read_mark(self._folder))
        if not numbers and upto is None:
            walk.nothing_left(read_mark(self._folder))
        return walk.batch()

    def _header(self, number: int) -> Header | None:
        header = self._headers.get(number) or read_header(segment_path(self._folder, number))
        if header is not None:
            self._headers[number] = header
        return header

    def _first_seq(self, number: int) -> int | None:
        """The number that a segment starts at; of one with a damaged header, its first frame that can be read."""
        header = self._header(number)
        if header is not None:
            return header.first_seq
        frame = first_frame(segment_path(self._folder, number), self.boot_id)
        return None if frame is None else frame.seq


def bytes_on_disk(folder: Path, *, but: int | None = None) -> int:
    """Of all segments of a boot, without the one numbered `but`."""
    return sum(segment_path(folder, number).stat().st_size for number in segment_numbers(folder) if number != but)


class _Walk:
    """Gathers one batch: what was read, what must have been there, and what lies between."""

    def __init__(self, boot_id: UUID, start: Checkpoint, limit: int) -> None:
        self._boot_id, self._limit = boot_id, limit
        self._frames: list[Frame] = []
        self._damages: list[Damage] = []
        self._size = 0
        self._hole: Hole | None = None
        self.behind = start

    def batch(self) -> Batch:
        return Batch(self._frames, self._damages, self.behind)

    def enter(self, number: int, header: Header | None) -> None:
        seq = self.behind.seq
        if seq is None:
            # Nothing is known of what came before: the segment says itself where it starts.
            known = header.first_seq - 1 if header is not None else None
            seq = 0 if known is None and number == 1 else known
        self.behind = Checkpoint(number, 0, seq)

    def read(self, path: Path, end: int | None, bound: int | None) -> bool:
        """Take frames up to `end`, or to the first that the next segment writes again. False when the batch is full."""
        for piece in read_pieces(path, self._boot_id, self.behind.offset, end=end):
            if isinstance(piece, Hole):
                self._hole = piece
                continue
            if bound is not None and piece.seq >= bound:
                return True
            if self._missing(piece.seq) or self._hole is not None:
                self._damaged(piece.seq, at=piece.end)
            self._frames.append(piece)
            self.behind = replace(self.behind, offset=piece.end, seq=piece.seq)
            self._size += len(piece.rec) + len(piece.side)
            if len(self._frames) >= self._limit or self._size >= BATCH_BYTES:
                return False
        return True

    def leave(self, size: int, next_seq: int | None) -> None:
        """A whole segment is read, and the next begins with `next_seq` (None: it cannot be read either)."""
        if next_seq is None:
            if self._hole is not None:
                # What is missing shows with the next frame; that this file is damaged too is said here.
                self._damaged(None, at=size)
        elif self._missing(next_seq) or (self._hole is not None and self._hole.start == 0 and size > HEADER_BYTES):
            self._damaged(next_seq, at=size)
        self._hole = None
        self.behind = replace(self.behind, offset=size, seq=self.behind.seq if next_seq is None else next_seq - 1)

    def end_at(self, upto: Position) -> None:
        """All that a living writer has written so far must have been read."""
        if self._missing(upto.seq + 1) or self._hole is not None:
            self._damaged(upto.seq + 1, at=upto.offset)
        self.behind = Checkpoint(upto.number, upto.offset, upto.seq)

    def end_of_dead(self, size: int, mark: Position | None) -> None:
        """Nothing follows. What its writer acknowledged must have been read; what is behind that was never promised."""
        if mark is not None and self._missing(mark.seq + 1):
            self._damaged(mark.seq + 1, at=size)
        elif mark is None and self._hole is not None and size > HEADER_BYTES:
            self._add(Damage(self._boot_id, self.behind.number, self._hole.start, self._hole.end, self._next, None))
        elif mark is not None and self._hole is not None and self._hole.start < self._promised(mark):
            self._damaged(mark.seq + 1, at=size)
        else:
            return
        seq = self.behind.seq if mark is None else max(mark.seq, self.behind.seq or 0)
        self.behind = replace(self.behind, offset=size, seq=seq)

    def nothing_left(self, mark: Position | None) -> None:
        """Not one segment. Shipping never deletes the one that the checkpoint names: without the mark nobody knows what
        else it held. Without a checkpoint nothing was shipped."""
        if self.behind == Checkpoint():
            self.behind = Checkpoint(seq=0)
        if mark is None and self.behind.number > 0:
            at = self.behind.offset
            self._add(Damage(self._boot_id, self.behind.number, at, at, self._next, None))
        else:
            self.end_of_dead(self.behind.offset, mark)

    @property
    def _next(self) -> int | None:
        return None if self.behind.seq is None else self.behind.seq + 1

    def _promised(self, mark: Position) -> int:
        return mark.offset if mark.number == self.behind.number else 0

    def _missing(self, seq: int) -> bool:
        return self._next is not None and seq > self._next

    def _damaged(self, seq: int | None, *, at: int) -> None:
        """Everything between the last frame and the one with `seq` is gone."""
        hole = self._hole or Hole(at, at)
        first = self._next
        if seq is None:
            records: int | None = 0
        elif first is None:
            records = None
        else:
            records = max(0, seq - first)
        self._add(Damage(self._boot_id, self.behind.number, hole.start, hole.end, first, records))

    def _add(self, damage: Damage) -> None:
        self._damages.append(damage)
        self._hole = None
