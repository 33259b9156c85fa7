"""The audit log that the pipeline writes to: builds records, makes them durable, refuses when it cannot.

`strict`: the completion is durable before the last byte. `standard`: within a second. In both the intent is on disk
before the first byte. `fast`: records reach the kernel before the answer goes on (they survive kill -9, not a power
cut) and the disk at most 50 ms later. In every mode a record that cannot be written refuses the request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import CommitmentKey, genesis
from gateway.audit.content import ContentSealer
from gateway.audit.content_recorder import ContentRecorder, Redact
from gateway.audit.damage import Damage, damage_record
from gateway.audit.event import Caller, Origin, Phase, Record
from gateway.audit.flood import Bulk, FloodGate
from gateway.audit.heads import Head
from gateway.audit.notices import admin_record, bulk_record, interrupted_record
from gateway.audit.request_event import request_caller, request_record
from gateway.audit.retention import Expired, find_expired, keep_removing, remove_expired
from gateway.audit.runs import Run
from gateway.audit.segment import DiskFile, Frame, SegmentFile
from gateway.audit.shipping_loop import Lag, ShippingLoop
from gateway.audit.spool import Spool
from gateway.audit.spool_dirs import Boot, commitment_key, create_boot, restore_key
from gateway.audit.spool_types import SpoolClosed, SpoolLimits
from gateway.audit.system_event import ERASE, RETAIN, refused_record, system_record, tells_of_refused
from gateway.audit.tally import Tally
from gateway.errors import Unavailable
from gateway.flow.context import Clock, IdSource, RequestContext
from gateway.flow.stages import Concluded, Exchange, stage_of
from gateway.flow.values import AdminEvent, Outcome
from gateway.settings import AuditSettings

log = logging.getLogger("esclusa.audit")

STALL_S = 5.0
"""A commit that takes longer refuses the requests that wait for it."""
WATCH_S = 0.5
BULK_S = 10.0
"""How often counted refusals are written down."""
FINISH_S = 5.0


class AuditService:
    """Implements `flow.ports.AuditLog`. One per process; `start` before the first request, `close` after the last."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        settings: AuditSettings,
        spool_dir: Path,
        clock: Clock,
        ids: IdSource,
        node_id: str,
        gateway_version: str,
        sealer: ContentSealer | None = None,
        redact: Redact | None = None,
        open_file: Callable[[Path], SegmentFile] = DiskFile,
    ) -> None:
        self._engine, self._settings, self._spool_dir = engine, settings, spool_dir
        self._clock, self._ids, self._open_file = clock, ids, open_file
        self._node_id, self._version = node_id, gateway_version
        self._kept = timedelta(days=settings.retention_days)
        self._open: dict[UUID, Caller] = {}
        self._contents = ContentRecorder(sealer, redact)
        self._flood = FloodGate(settings.unknown_per_minute)
        self._folded: set[UUID] = set()
        self._tally = Tally()
        self._refused: Bulk | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._boot: Boot | None = None
        self._closing = False

    async def start(self) -> None:
        """Open the spool and begin shipping; Postgres need not be up. Raises `OSError` for a spool it cannot write."""
        boot_id = self._ids.uuid7()
        configured = self._settings.hmac_key
        secret = commitment_key(self._spool_dir, None if configured is None else configured.get_secret_value().encode())
        self._boot = create_boot(self._spool_dir, self._node_id, boot_id)
        self._origin = Origin(self._node_id, boot_id, self._version, CommitmentKey(secret))
        self._cursor_key = hmac.digest(secret, b"esclusa.audit.cursor", "sha256")
        quota = self._settings.spool_quota_bytes
        limits = SpoolLimits(
            quota_bytes=quota,
            segment_bytes=min(16 * 1024 * 1024, max(64 * 1024, quota // 16)),
            group_records=self._settings.group_commit_records,
            window_s=self._settings.group_commit_ms / 1000,
            sync_each_group=self._settings.mode != "fast",
        )
        self._spool = Spool(
            self._boot.folder,
            boot_id,
            genesis(self._node_id, boot_id),
            limits,
            loop=asyncio.get_running_loop(),
            committed=self._committed,
            open_file=self._open_file,
            restore_folder=lambda: self._restore_folder(secret),
        )
        self._shipping = ShippingLoop(
            self._engine,
            self._spool,
            self._boot,
            self._spool_dir,
            self._node_id,
            self._clock,
            self._close_orphan,
            self._write_damage,
            self._write_refused,
            lambda: frozenset(self._open),
        )
        self._shipping.take_over()
        self._spool.start(self._shipping.dead_bytes())
        self._run = Run(self._engine, self._origin, self._spool, self._spool_dir, self._clock, self._ids)
        await self._run.begin(self._shipping.dead_folders())
        self._tasks = [
            asyncio.create_task(self._run.keep_sealing(self._settings.seal_s), name="audit-seals"),
            asyncio.create_task(self._shipping.run(), name="audit-courier"),
            asyncio.create_task(
                keep_removing(self._engine, self._clock, self._kept, self._tell_removed), name="audit-retention"
            ),
            asyncio.create_task(self._watch(), name="audit-watch"),
        ]

    @property
    def boots(self) -> tuple[UUID, tuple[UUID, ...]]:
        """This process, and those of the same spool that ended without closing it. After `start`."""
        assert self._boot is not None, "start() comes first"
        return self._boot.boot_id, self._shipping.dead_boots()

    async def close(self) -> None:
        """Flush the spool and ship it if Postgres answers; what stays is shipped by the next start."""
        if self._boot is None:
            return
        self._write_bulks()
        self._closing = True
        await self._spool.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if await self._shipping.finish(FINISH_S) and not self._open and self._run.end():
            self._boot.remove()
        self._shipping.release()
        self._boot.release()
        self._boot = None

    # ------------------------------------------------------------------------------------------------ AuditLog

    async def intent(self, exchange: Exchange) -> None:
        """Returns once the intent is durable (`fast`: in the kernel).

        Raises `Unavailable` (`audit_unavailable`; `content_key_missing` where policy wants content that cannot be
        encrypted) and `RequestTooLarge`.
        """
        now = self._clock.now()
        failure = exchange.failure if isinstance(exchange, Concluded) else None
        if failure is not None and self._fold(stage_of(exchange).context, failure.status, failure.code, now):
            self._folded.add(exchange.request_id)
            return
        sealed = await self._contents.of_intent(exchange, now)
        by = request_caller(self._origin, exchange)
        record = request_record(self._origin, self._ids.uuid7(), now, "intent", exchange, by, sealed)
        self._open[exchange.request_id] = by
        try:
            await self._write(record, wait=True, keep=False)
        except SpoolClosed as closed:
            if not closed.written:
                self._open.pop(exchange.request_id, None)
            raise self._unavailable(closed) from None

    async def completion(self, exchange: Concluded) -> None:
        """Write the completion of a request. After an intent it is kept until the disk takes it.

        `strict` waits until it is durable. Without an intent (refused before one was written) it is waited for in
        every mode, because nothing else tells of the request. Raises `Unavailable` when it cannot be written now.
        """
        now = self._clock.now()
        if exchange.request_id in self._folded:
            self._folded.discard(exchange.request_id)
            return
        sealed = await self._contents.of_completion(exchange, now)
        by = self._open.pop(exchange.request_id, None)
        promised = by is not None
        phase: Phase = "completion" if promised or exchange.outcome is not Outcome.DENIED else "denied"
        by = by or request_caller(self._origin, exchange)
        record = request_record(self._origin, self._ids.uuid7(), now, phase, exchange, by, sealed)
        wait = not promised or self._settings.mode == "strict"
        try:
            await self._write(record, wait=wait, keep=promised)
        except SpoolClosed as closed:
            if not promised and not closed.written:
                first = Bulk("audit_unavailable", 503, 1, now, now, exchange.request_id)
                self._refused = first if self._refused is None else self._refused.more(now)
            raise self._unavailable(closed, ran=promised) from None

    async def admin(self, event: AdminEvent) -> None:
        """Durable before the admin answer leaves; a flood of unknown callers is counted. Raises `Unavailable`."""
        now = self._clock.now()
        if not event.allowed and self._fold(event.context, event.status, event.error_code or "", now):
            self._tally.note(event.context.request_id)
            return
        try:
            record = admin_record(self._origin, self._ids.uuid7(), now, event)
            await self._write(record, wait=True, keep=False)
        except SpoolClosed as closed:
            raise self._unavailable(closed) from None
        self._tally.note(event.context.request_id)

    # ------------------------------------------------------------------------------------------------- others

    def account(
        self, request_id: UUID, status: int, code: str, source: str | None, route: str = "-", count: int = 1
    ) -> None:
        """Count an answer that left no record: called for every request that did not come through the pipeline.

        `route` is one of our own paths or `-`, `code` one of our own codes (empty for a success). Written down within
        seconds as `aggregated` records.
        """
        self._tally.add(request_id, status, code, source, route, self._clock.now(), count)

    async def find_expired(self) -> list[Expired]:
        return await find_expired(self._engine, self._clock.now() - self._kept)

    async def retain(self) -> list[Expired]:
        """Remove what is older than `audit.retention_days`, each month after a record that tells of it."""
        return await remove_expired(self._engine, self._clock.now() - self._kept, self._tell_removed)

    async def tell_erased(self, facts: dict[str, Any]) -> None:
        """Keep on record what an erasure is about to take out; durable when it returns. Raises `Unavailable`."""
        try:
            record = system_record(self._origin, self._ids.uuid7(), self._clock.now(), ERASE, facts)
            await self._write(record, wait=True, keep=False)
        except SpoolClosed as closed:
            raise self._unavailable(closed) from None

    async def settle(self, timeout_s: float = 1.0) -> Lag:
        """Wait, at most so long, until what was written before can be read from Postgres. Never raises."""
        try:
            return await self._shipping.settle(timeout_s)
        except SpoolClosed:
            return self._shipping.lag()

    @property
    def healthy(self) -> bool:
        """False while requests are refused because nothing can be recorded: `/readyz` follows it."""
        return self._boot is not None and self._spool.failure is None

    @property
    def commitment_key(self) -> CommitmentKey:
        return self._origin.key

    @property
    def cursor_key(self) -> bytes:
        """For `AuditReader`; replicas agree on it when `audit.hmac_key` is configured."""
        return self._cursor_key

    def status(self) -> Mapping[str, object]:
        """For `/readyz`, metrics and `doctor`; no I/O."""
        if self._boot is None:
            return {"state": "stopped"}
        lag = self._shipping.lag()
        return {
            "state": "ready" if self._spool.failure is None else "refusing",
            "failure": self._spool.failure,
            "mode": self._settings.mode,
            "spool_bytes": self._spool.used_bytes,
            "spool_quota_bytes": self._settings.spool_quota_bytes,
            "sealed_seq": self._run.sealed_seq,
            "open_requests": len(self._open),
            "ingest_lag_s": round(lag.seconds, 3),
            "postgres": self._shipping.outage or "ok",
            "shipped": self._shipping.shipper.shipped,
            "quarantined": self._shipping.refused_rows,
            "quarantined_files": self._shipping.kept.files,
            "lost_records": self._shipping.kept.lost_records,
            "spool_restored": self._spool.restored,
            "stray_rows": self._shipping.stray_rows,
            "misdated": self._shipping.shipper.misdated,
            "clock_skew_s": round(self._shipping.shipper.skew_s, 3),
            "postgres_behind": bool(self._shipping.outage),
            "housekeeping_fails": bool(self._shipping.house),
            "recovered": self._shipping.recovered,
        }

    # ----------------------------------------------------------------------------------------------- private

    async def _write(self, record: Record, *, wait: bool, keep: bool) -> None:
        future = self._spool.submit(record.rec, record.side, wait=wait, keep=keep)
        if future is not None:
            await future

    async def _tell_removed(self, facts: dict[str, Any]) -> None:
        await self._write_for_courier(
            system_record(self._origin, self._ids.uuid7(), self._clock.now(), RETAIN, facts), keep=False
        )
        await self.settle(FINISH_S)

    async def _close_orphan(self, intent: dict[str, Any], personal: dict[str, str], lost: bool) -> None:
        outcome = Outcome.RECORD_LOST if lost else Outcome.INTERRUPTED
        record = interrupted_record(self._origin, self._ids.uuid7(), self._clock.now(), intent, personal, outcome)
        await self._write_for_courier(record, keep=False)

    async def _write_damage(self, damage: Damage) -> None:
        # Kept whatever the quota says: the damaged file cannot be passed, and room made, before this is on record.
        record = damage_record(self._origin, self._ids.uuid7(), self._clock.now(), damage)
        await self._write_for_courier(record, keep=True)

    async def _write_refused(self, frame: Frame, error: str) -> None:
        if tells_of_refused(frame.rec):
            return  # Where every row is refused, one record for each is the last word.
        row = Head(self._node_id, frame.boot_id, frame.seq, frame.hash)
        record = refused_record(self._origin, self._ids.uuid7(), self._clock.now(), row, error)
        await self._write_for_courier(record, keep=True)

    async def _write_for_courier(self, record: Record, *, keep: bool) -> None:
        if self._closing:
            raise OSError("the audit is being closed")
        try:
            await self._write(record, wait=True, keep=keep)
        except SpoolClosed as closed:
            # Told as an outage: the courier tries again later, with everything it knew.
            raise OSError(closed.reason) from None

    def _restore_folder(self, secret: bytes) -> None:
        if self._boot is not None:
            self._boot.restore()
            restore_key(self._spool_dir, None if self._settings.hmac_key is not None else secret)

    def _committed(self) -> None:
        self._shipping.committed()

    async def _watch(self) -> None:
        """Notice a disk that hangs, a spool that fills, and count what could not be recorded one by one."""
        warned, drained = False, self._clock.monotonic_s()
        while True:
            await asyncio.sleep(WATCH_S)
            self._spool.check_stall(STALL_S)
            share = self._spool.used_bytes / self._settings.spool_quota_bytes
            if share > 0.5 and not warned:
                log.warning("audit spool is %.0f %% full: Postgres does not take the records", 100 * share)
            warned = share > 0.5
            due = self._clock.monotonic_s() - drained >= BULK_S
            if self._spool.failure is None and (due or self._refused is not None):
                drained = self._clock.monotonic_s()
                self._write_bulks()

    def _write_bulks(self) -> None:
        counted = (*self._flood.drain(), *self._tally.drain())
        bulks = counted if self._refused is None else (self._refused, *counted)
        self._refused = None
        for bulk in bulks:
            record = bulk_record(self._origin, self._ids.uuid7(), self._clock.now(), bulk)
            self._spool.submit(record.rec, record.side, wait=False, keep=True)

    def _fold(self, context: RequestContext, status: int, code: str, now: datetime) -> bool:
        """Count a refusal of a caller nobody knows instead of recording it, when its source floods us with them."""
        source = context.client.ip
        if status != 401 or self._flood.admits(source, self._clock.monotonic_s()):
            return False
        self._flood.fold(source, code, status, now, context.request_id)
        return True

    @staticmethod
    def _unavailable(closed: SpoolClosed, *, ran: bool = False) -> Unavailable:
        """`ran`: only the record of the end is missing; the model has run, and the caller may have read its answer."""
        if ran:
            message = "The request was run, but the end of its answer cannot be recorded now; take it for incomplete."
            hint = "send it again in a few seconds if you need it; tokens were used, and the record is written later"
        else:
            message = "The request cannot be recorded now, so it is not run."
            hint = "try again in a few seconds; the operator sees the cause in the log"
        return Unavailable(
            message,
            code="audit_unavailable",
            hint=hint,
            retry_after_s=5,
            detail=closed.reason,
        )
