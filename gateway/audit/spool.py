"""The write-ahead spool: one thread that numbers, chains and writes records, and tells their waiters when it is done.

Group commit by itself: while one `fdatasync` runs, the next group gathers. An error of the disk poisons the segment,
the group is written once more to a new one, and when that fails too the spool is shut ("fail closed") until a later
attempt succeeds. Knows bytes, files and futures; not what a record says and not where it is shipped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from gateway.audit.canonical import chain_hash
from gateway.audit.mark import Mark
from gateway.audit.open_segment import Displaced, OpenSegment
from gateway.audit.segment import FRAME_OVERHEAD, DiskFile, SegmentFile, encode_frame
from gateway.audit.spool_types import Entry, Position, SpoolClosed, SpoolLimits, settle

log = logging.getLogger("esclusa.audit")

LAZY_S = 0.02
"""A record nobody waits for is written at the latest this much later, or with the next one that is waited for."""
CACHE_SYNC_S = 0.05
"""In `fast` mode the disk is asked to sync at most this often."""
RETRY_S = 0.5
CLOSE_S = 5.0
"""How long an ending process still tries to write to a disk that fails."""


class Spool:
    """`submit` from the event loop, `position` and `released` for the shipper. One per process."""

    def __init__(
        self,
        folder: Path,
        boot_id: UUID,
        genesis: bytes,
        limits: SpoolLimits,
        *,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[], None],
        open_file: Callable[[Path], SegmentFile] = DiskFile,
        restore_folder: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits, self._loop, self._committed = limits, loop, committed
        self._segment = OpenSegment(folder, boot_id, open_file, restore_folder)
        self._mark = Mark(folder)
        self._queue: deque[Entry] = deque()
        self._any, self._urgent = threading.Event(), threading.Event()
        self._closing = False
        self._give_up_at: float | None = None
        self._seq, self._hash = 0, genesis
        self._durable = (0, genesis)
        self._unsynced: list[Entry] = []
        self._last_sync = 0.0
        self._other_bytes = 0
        self._rotate = False
        self._suspected = False
        self._crowd = 0
        self._busy_since: float | None = None
        self._inflight: Sequence[Entry] = ()
        self.position = self._reported_position = Position(0, 0)
        self.failure: str | None = None
        """Why the spool accepts nothing now; None when it works."""
        self._thread = threading.Thread(target=self._run, name="audit-spool", daemon=True)

    # ------------------------------------------------------------------------------------------ event loop's side

    def start(self, other_bytes: int = 0) -> None:
        """Open the first segment; `other_bytes` is what older boots still hold. Raises `OSError`."""
        self._other_bytes = other_bytes
        self._open_segment()
        self._thread.start()

    def submit(self, rec: bytes, side: bytes, *, wait: bool, keep: bool) -> asyncio.Future[None] | None:
        """Queue one record. With `wait`, the future ends when it is durable, or with `SpoolClosed`.

        `keep`: never refused and tried again for as long as it takes (the completion of an admitted request).
        Raises `SpoolClosed` at once for others while the spool is shut.
        """
        if self.failure is not None and not keep:
            raise SpoolClosed(self.failure)
        future = self._loop.create_future() if wait else None
        self._queue.append(Entry(rec, side, future, keep))
        if wait and not self._urgent.is_set():
            self._urgent.set()
        if not self._any.is_set():
            self._any.set()
        return future

    async def flush(self) -> None:
        """Returns once everything submitted before is written. Raises `SpoolClosed`."""
        future = self._loop.create_future()
        self._queue.append(Entry(b"", b"", future, False))
        self._urgent.set()
        self._any.set()
        await future

    async def close(self) -> None:
        """Write what is queued, sync, end the thread."""
        self._closing, self._give_up_at = True, time.monotonic() + CLOSE_S
        self._urgent.set()
        self._any.set()
        await self._loop.run_in_executor(None, self._thread.join, 2 * CLOSE_S)
        if self._thread.is_alive():
            log.error("the audit disk hangs; %d records were not written", len(self._queue) + len(self._inflight))

    @property
    def head(self) -> tuple[int, bytes]:
        """Number and hash of the last durable record."""
        return self._durable

    @property
    def segment_bytes(self) -> int:
        return self._limits.segment_bytes

    @property
    def used_bytes(self) -> int:
        return self._other_bytes + self._segment.size

    @property
    def restored(self) -> int:
        """How often the open segment was removed and written anew."""
        return self._segment.restored

    def released(self, other_bytes: int) -> None:
        """The shipper deleted files: what all segments but the open one hold now."""
        self._other_bytes = other_bytes
        self._any.set()

    def suspect(self) -> None:
        """The shipper misses the open segment: look at once, not with the next record."""
        self._suspected = True
        self._urgent.set()
        self._any.set()

    def rotate(self) -> None:
        """Start a new segment with the next group, so that the present one can be deleted."""
        self._rotate = True

    def check_stall(self, limit_s: float) -> None:
        """Called now and then from the loop: a disk that hangs must not hang requests."""
        since = self._busy_since
        if since is None or time.monotonic() - since < limit_s:
            return
        self.failure = "the audit disk does not answer"
        waiting = [*self._inflight, *self._queue]
        settle([entry.future for entry in waiting], SpoolClosed(self.failure, written=True))

    # ---------------------------------------------------------------------------------------------- the thread's side

    def _run(self) -> None:
        while True:
            self._await_work()
            group = self._take()
            if group or self._unsynced or self.failure is not None or self._suspected:
                self._suspected = False
                self._busy_since = time.monotonic()
                self._inflight = group
                self._commit(group)
                self._inflight, self._busy_since = (), None
            if self._closing and not self._queue:
                self._shut()
                return

    def _await_work(self) -> None:
        if self._queue or self._closing or self._suspected:
            return
        timeout = None
        if self.failure is not None:
            timeout = RETRY_S
        elif self._unsynced:
            timeout = max(0.0, self._last_sync + CACHE_SYNC_S - time.monotonic())
        self._any.wait(timeout)
        self._any.clear()
        if not self._urgent.is_set() and not self._closing:
            self._urgent.wait(LAZY_S)
        elif self._crowd > 8 and self._limits.window_s > 0:
            # Many wait at once: a short pause makes one write and one wake-up of what would be several.
            time.sleep(self._limits.window_s / 4)
        self._urgent.clear()

    def _take(self) -> list[Entry]:
        group: list[Entry] = []
        while self._queue and len(group) < self._limits.group_records:
            group.append(self._queue.popleft())
        self._crowd = len(group)
        return group

    def _commit(self, group: list[Entry]) -> None:
        group = self._admit(group)
        try:
            if self._segment.displaced:
                self._hold_place()
                self._synced()
            elif not self._segment.is_open:
                self._open_segment()
            self._write(group, durably=self._limits.sync_each_group)
            if not self._limits.sync_each_group:
                self._acknowledge(group)
                if time.monotonic() - self._last_sync >= CACHE_SYNC_S:
                    self._sync()
        except Displaced as gone:
            self._wait_for_place(group, gone)
            return
        except OSError as error:
            self._recover(group, error)
            return
        if self.failure is not None and self.used_bytes < self._limits.quota_bytes * 0.95:
            log.warning("audit spool works again")
            self.failure = None
        self._tell([entry.future for entry in group], None)

    def _acknowledge(self, group: list[Entry]) -> None:
        """`fast` mode: waiters go on before the sync; from here on their records may not be given up."""
        self._move()
        for entry in group:
            entry.keep = True
        self._tell([entry.future for entry in group], None)

    def _admit(self, group: list[Entry]) -> list[Entry]:
        """Hold the quota. While the spool is shut only what must be kept is tried."""
        room = self._limits.quota_bytes - self.used_bytes
        accepted: list[Entry] = []
        refused: list[Entry] = []
        for entry in group:
            room -= len(entry.rec) + len(entry.side) + FRAME_OVERHEAD if entry.rec else 0
            fits = room > 0 or entry.keep or not entry.rec
            (accepted if fits else refused).append(entry)
        if refused:
            if self.failure is None:
                log.error("audit spool quota of %d bytes is reached; requests are refused", self._limits.quota_bytes)
            self.failure = "the audit spool is full"
            self._tell([entry.future for entry in refused], SpoolClosed(self.failure))
        return accepted

    def _write(self, group: list[Entry], *, durably: bool) -> None:
        records = [entry for entry in group if entry.rec]
        if not records:
            self._hold_place()
            return
        if self._rotate or self._segment.changed or self._segment.size >= self._limits.segment_bytes:
            self._sync()
            self._hold_place()
            self._open_segment()
        seq, head = self._seq, self._hash
        frames: list[bytes] = []
        for entry in records:
            seq += 1
            own = chain_hash(head, seq, entry.rec)
            frames.append(encode_frame(seq, head, own, entry.side, entry.rec))
            head = own
        data = b"".join(frames)
        self._unsynced += records
        self._segment.append(data, durably=durably)
        self._seq, self._hash = seq, head
        self._hold_place()
        if self._segment.changed:
            self._sync()
            self._open_segment()
        elif durably:
            self._synced()

    def _sync(self) -> None:
        if self._unsynced:
            self._segment.sync()
            self._synced(readable=not self._segment.changed)

    def _synced(self, *, readable: bool = True) -> None:
        """`readable`: the offsets of the segment are ours."""
        self._last_sync = time.monotonic()
        self._unsynced = []
        self._durable = (self._seq, self._hash)
        if readable:
            self._move()

    def _move(self) -> None:
        """Make everything written so far readable and findable."""
        self.position = Position(self._segment.number, self._segment.size, self._seq)
        self._mark.put(self.position)

    def _hold_place(self) -> None:
        before = self._segment.restored
        self._segment.hold_place()
        if self._segment.restored != before:
            self._mark.reopen()

    def _wait_for_place(self, group: list[Entry], gone: Displaced) -> None:
        """The records are in a file without a name, and only its descriptor keeps them: refuse until it has one."""
        self.failure = f"the audit spool folder was removed: {gone.strerror}"
        log.error("audit spool is shut, requests are refused: %s", self.failure)
        written = [entry for entry in group if entry in self._unsynced]
        self._tell([entry.future for entry in group], SpoolClosed(self.failure, written=True))
        self._put_back([entry for entry in group if entry.keep and entry not in written])

    def _open_segment(self) -> None:
        """Leave the present segment (whole, or poisoned and cut) and begin the next at the durable chain position."""
        if self._segment.changed:
            log.error("audit segment %d was changed by somebody else; a new one is begun", self._segment.number)
        if self._segment.is_open:
            self._other_bytes += self._segment.size
        self._rotate = False
        self._seq, self._hash = self._durable
        self._segment.begin(self._seq + 1, self._hash)
        self._last_sync = time.monotonic()
        self._move()

    def _recover(self, group: list[Entry], error: OSError) -> None:
        """The group once more in a new file. An `fsync` that failed is never repeated on the same file: the kernel may
        have dropped the pages and would report success."""
        log.error("audit segment %d is poisoned: %s", self._segment.number, error.strerror or error)
        again = [entry for entry in self._unsynced if entry not in group] + group
        self._abandon_segment()
        try:
            self._open_segment()
            self._write(again, durably=True)
        except OSError as second:
            self._abandon_segment()
            self.failure = f"the audit disk fails: {second.strerror or second}"
            log.error("audit spool is shut, requests are refused: %s", self.failure)
            self._tell([entry.future for entry in again], SpoolClosed(self.failure))
            self._put_back([entry for entry in again if entry.keep])
            return
        self.failure = None
        self._tell([entry.future for entry in again], None)

    def _put_back(self, kept: list[Entry]) -> None:
        if self._give_up_at is not None and time.monotonic() > self._give_up_at:
            log.error("%d audit records could not be written before the end", len(kept))
            return
        self._queue.extendleft(reversed(kept))
        time.sleep(RETRY_S)

    def _abandon_segment(self) -> None:
        """Close the poisoned file, cut to what is known durable where the disk still lets us."""
        self._unsynced = []
        if self._segment.is_open:
            durable = self.position.offset if self.position.number == self._segment.number else 0
            self._segment.abandon(durable)
            self._other_bytes += durable

    def _shut(self) -> None:
        try:
            self._hold_place()
            self._sync()
        except OSError as error:
            log.error("audit spool could not be synced at the end: %s", error.strerror or error)
        self._segment.close()
        self._mark.close()

    def _tell(self, futures: Sequence[asyncio.Future[None] | None], error: SpoolClosed | None) -> None:
        """One wake-up of the loop for the whole group."""
        try:
            self._loop.call_soon_threadsafe(
                self._settle_group, futures, error, self.position != self._reported_position
            )
            self._reported_position = self.position
        except RuntimeError:
            log.warning("the event loop ended before the audit spool did")

    def _settle_group(
        self, futures: Sequence[asyncio.Future[None] | None], error: SpoolClosed | None, moved: bool
    ) -> None:
        settle(futures, error)
        if moved:
            self._committed()
