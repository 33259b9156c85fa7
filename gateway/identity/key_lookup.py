"""API keys by id: from the database while it answers, else as they were last known there, for a stated time.

One question per key at a time, waited for briefly. After one that failed nobody waits: what is known is served at
once, what is not is refused at once, and one question a second finds out when the database is back. Decides nothing
about a key: whether it is expired or revoked is asked of the record, and of the list of revocations, either way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from gateway.errors import Unavailable
from gateway.flow.context import Clock
from gateway.identity.api_keys import ApiKeyRecord, ApiKeyRepository
from gateway.identity.local_copies import IdentityCopies, SavedKey
from gateway.settings import IdentitySettings

_log = logging.getLogger("esclusa.identity.api_keys")

MAX_KEPT = 10_000
PROBE_S = 1.0
CONFIRM_EVERY_S = 60.0
"""Keys that are kept are read again after every change, and this often should a notification be lost."""


class KeyLookup:
    """Implements `ApiKeyRepository` over another one. One event loop; `start` loads the local copy."""

    def __init__(
        self,
        repository: ApiKeyRepository,
        settings: IdentitySettings,
        clock: Clock,
        *,
        copies: IdentityCopies | None = None,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._repository = repository
        self._patience_s = settings.api_key_lookup_timeout_s
        self._max_stale = timedelta(seconds=settings.api_key_max_stale_s)
        self._clock = clock
        self._copies = copies
        self._changes = changes
        self._kept: OrderedDict[str, SavedKey] = OrderedDict()
        self._asking: dict[str, asyncio.Task[ApiKeyRecord | None]] = {}
        self._probe_at_s: float | None = None
        self._confirmed: tuple[int, float] | None = None
        self._unsaved = False
        self.served_stale = 0
        """Requests answered from what was last known."""

    @property
    def away(self) -> bool:
        """Did the last question to the database fail?"""
        return self._probe_at_s is not None

    async def start(self) -> None:
        if self._copies is not None:
            for saved in await asyncio.to_thread(self._copies.load_keys):
                self._kept[saved.record.key_id] = saved

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._save()

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        kept = self._usable(key_id)
        if self._probe_at_s is not None:
            probing = self._clock.monotonic_s() >= self._probe_at_s
            if probing:
                self._probe_at_s = self._clock.monotonic_s() + PROBE_S
                self._ask(key_id)
            if kept is not None:
                self.served_stale += 1
                return kept
            if not probing:
                raise _unavailable("not asked")
        task = self._ask(key_id)
        done, _ = await asyncio.wait({task}, timeout=self._patience_s)
        if not done:
            self._failed("no answer in time")
        elif task.cancelled():
            raise _unavailable("closing")
        elif not isinstance(task.exception(), Unavailable):
            return task.result()
        if kept is not None:
            self.served_stale += 1
            return kept
        raise _unavailable("no answer")

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKeyRecord]:
        return await self._repository.find_keys(key_ids)

    async def mark_used(self, used: dict[str, datetime]) -> None:
        await self._repository.mark_used(used)

    async def refresh(self) -> None:
        """Read again what is kept, in one query, if something changed: a right that was taken must not come back."""
        now_s, changes = self._clock.monotonic_s(), self._changes()
        if self._confirmed is not None:
            seen, at_s = self._confirmed
            if seen == changes and now_s - at_s < CONFIRM_EVERY_S:
                await self._save(only_new=True)
                return
        try:
            found = await self._repository.find_keys(tuple(self._kept)) if self._kept else ()
        except Unavailable as error:
            self._failed(error.detail or error.message)
            return
        self._answered()
        self._confirmed = (changes, now_s)
        known = {record.key_id: record for record in found}
        for key_id in tuple(self._kept):
            if key_id in known:
                self._keep(known[key_id], touch=False)
            else:
                del self._kept[key_id]
        await self._save()

    def _usable(self, key_id: str) -> ApiKeyRecord | None:
        saved = self._kept.get(key_id)
        if saved is None or self._clock.now() - saved.confirmed_at > self._max_stale:
            return None
        return saved.record

    def _ask(self, key_id: str) -> asyncio.Task[ApiKeyRecord | None]:
        task = self._asking.get(key_id)
        if task is None:
            task = self._asking[key_id] = asyncio.create_task(self._question(key_id), name="api key look-up")
            task.add_done_callback(lambda done: self._asked(key_id, done))
        return task

    async def _question(self, key_id: str) -> ApiKeyRecord | None:
        try:
            record = await self._repository.find_key(key_id)
        except Unavailable as error:
            self._failed(error.detail or error.message)
            raise
        self._answered()
        if record is None:
            self._kept.pop(key_id, None)
        else:
            self._keep(record)
        return record

    def _asked(self, key_id: str, task: asyncio.Task[ApiKeyRecord | None]) -> None:
        self._asking.pop(key_id, None)
        if not task.cancelled():
            task.exception()  # somebody may have stopped waiting for it

    def _keep(self, record: ApiKeyRecord, *, touch: bool = True) -> None:
        self._unsaved = self._unsaved or record.key_id not in self._kept
        self._kept[record.key_id] = SavedKey(self._clock.now(), record)
        if touch:
            self._kept.move_to_end(record.key_id)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def _failed(self, why: str) -> None:
        if self._probe_at_s is None:
            _log.warning("the database of API keys does not answer (%s); keys are served as last known", why)
            self._probe_at_s = self._clock.monotonic_s() + PROBE_S

    def _answered(self) -> None:
        if self._probe_at_s is not None:
            _log.info("the database of API keys answers again")
        self._probe_at_s = None

    async def _save(self, *, only_new: bool = False) -> None:
        if self._copies is not None and (self._unsaved or not only_new):
            self._unsaved = False
            await asyncio.to_thread(self._copies.save_keys, tuple(self._kept.values()))


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(
        "The API key cannot be checked at the moment.",
        code="idp_unavailable",
        hint="retry; the key may be perfectly valid",
        detail=f"key look-up: {detail}",
    )
