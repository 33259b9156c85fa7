"""The segment that is being written: begin, append, sync, abandon, and stay where others will look for it.

A file may be cut, written into, removed or mounted over while it is open. Its descriptor still reaches what was
written, so nothing is lost as long as the process lives; but nobody may be told that a record is safe before the file
has its name again. One thread uses it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from gateway.audit.segment import HEADER_BYTES, SegmentFile, encode_header, segment_path

log = logging.getLogger("esclusa.audit")


class Displaced(OSError):
    """The open segment has lost its name and cannot get it back now."""


class OpenSegment:
    """`number` and `size` of the present file; no file before the first `begin` and after `abandon` or `close`."""

    def __init__(
        self,
        folder: Path,
        boot_id: UUID,
        open_file: Callable[[Path], SegmentFile],
        restore_folder: Callable[[], None],
    ) -> None:
        self._folder, self._boot_id = folder, boot_id
        self._open_file, self._restore_folder = open_file, restore_folder
        self._file: SegmentFile | None = None
        self.number = 0
        self.size = 0
        self.displaced = False
        self.restored = 0
        """How often the segment had lost its name and was written anew."""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def begin(self, first_seq: int, prev_hash: bytes) -> None:
        """Leave the present file and start the next. Raises `OSError`."""
        self.close()
        self.size = 0
        self.number += 1
        path = segment_path(self._folder, self.number)
        try:
            self._file = self._open_file(path)
        except FileNotFoundError:
            self._restore_folder()
            self._file = self._open_file(path)
        self._file.write(encode_header(self._boot_id, first_seq, prev_hash))
        self._file.sync()
        self.size = HEADER_BYTES

    def append(self, data: bytes, *, durably: bool) -> None:
        if self._file is None:
            raise OSError("the audit segment could not be opened")
        if durably:
            self._file.write_durably(data)
        else:
            self._file.write(data)
        self.size += len(data)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    @property
    def changed(self) -> bool:
        """Whether somebody else cut the file or wrote into it: no offset in it can be relied on any more."""
        return self._file is not None and self._file.size() != self.size

    def hold_place(self) -> None:
        """Returns when the file is where the shipper, or the next process, will look for it. Raises `Displaced`."""
        if self._file is None or (not self.displaced and self._file.in_place()):
            return
        if not self.displaced:
            log.error("audit segment %d was removed under the running gateway", self.number)
        self.displaced = True
        try:
            self._put_in_place(self._file)
        except OSError as error:
            raise Displaced(error.errno, error.strerror or str(error)) from error
        self.displaced = False
        self.restored += 1
        log.error("audit segment %d is back with all of its records", self.number)

    def abandon(self, durable: int) -> None:
        """Close a poisoned file, cut to what is known durable where the disk still lets us."""
        file, self._file = self._file, None
        self.size, self.displaced = 0, False
        if file is None:
            return
        try:
            file.truncate(durable)
        except OSError as error:
            log.warning("audit segment %d is not cut: %s", self.number, error.strerror or error)
        finally:
            with contextlib.suppress(OSError):
                file.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _put_in_place(self, lost: SegmentFile) -> None:
        self._restore_folder()
        path = segment_path(self._folder, self.number)
        path.unlink(missing_ok=True)
        file = self._open_file(path)
        file.write_durably(lost.content())
        self._file = file
        lost.close()
