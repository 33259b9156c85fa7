"""The revocation list, held in memory and refreshed within seconds everywhere.

Owns the in-process list, its index and its age. The store behind it is a `RevocationStore`; changes arrive by LISTEN
and, should a notification be lost, by a poll. Asking the list does no I/O, so a running answer can ask between chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway.errors import Unavailable
from gateway.flow.context import Clock
from gateway.flow.values import Principal
from gateway.settings import IdentitySettings
from gateway.storage.postgres import Listener

_log = logging.getLogger("esclusa.identity.revocations")

CHANNEL = "esclusa_identity"
"""NOTIFY channel of every change to revocations, keys, accounts and bindings."""

SAVE_EVERY_S = 60.0
"""How often a list that did not change is confirmed on disk."""

RevocationKind = Literal["credential", "subject", "issued_before"]


@dataclass(frozen=True, slots=True)
class Revocation:
    """One entry. `credential`: a token id or API key; `subject`: a person or account, until lifted;
    `issued_before`: every token older than T of a subject, of an issuer (no subject) or of a tenant (no issuer)."""

    id: str
    kind: RevocationKind
    tenant: str
    issuer: str | None
    subject: str | None
    credential_id: str | None
    issued_before: datetime | None
    reason: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    lifted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SavedRevocations:
    confirmed_at: datetime
    """When the store was last known to say so."""
    entries: tuple[Revocation, ...]


class RevocationCopy(Protocol):
    """The last list on local disk. Both may block; neither raises."""

    def save_revocations(self, saved: SavedRevocations) -> None: ...

    def load_revocations(self) -> SavedRevocations | None: ...


class RevocationStore(Protocol):
    async def active_revocations(self, now: datetime) -> tuple[Revocation, ...]:
        """All entries that are neither lifted nor past `expires_at`. Raises `Unavailable`."""
        ...


Target = tuple[str, str | None, str | None]
"""(tenant, issuer, subject or credential id); None where an entry names no such thing."""


@dataclass(frozen=True, slots=True)
class RevocationIndex:
    """Entries arranged for look-ups. Built once per change, never mutated. A tenant's entries reach no other tenant."""

    credentials: frozenset[Target] = frozenset()
    subjects: frozenset[Target] = frozenset()
    before: dict[Target, datetime] = field(default_factory=dict)
    size: int = 0
    reaches_owned: bool = True
    """Do the entries of a person concern the keys of the accounts that they own?"""

    @classmethod
    def build(cls, entries: Iterable[Revocation], *, reaches_owned: bool = True) -> RevocationIndex:
        credentials: set[Target] = set()
        subjects: set[Target] = set()
        before: dict[Target, datetime] = {}
        size = 0
        for entry in entries:
            size += 1
            if entry.kind == "credential":
                credentials.add((entry.tenant, entry.issuer, entry.credential_id))
            elif entry.kind == "subject":
                subjects.add((entry.tenant, entry.issuer, entry.subject))
            elif entry.issued_before is not None:
                target = (entry.tenant, entry.issuer, entry.subject)
                held = before.get(target)
                before[target] = entry.issued_before if held is None else max(held, entry.issued_before)
        return cls(frozenset(credentials), frozenset(subjects), before, size, reaches_owned)

    def covers(self, principal: Principal) -> bool:
        """True when any entry applies. A principal without an issue time is older than every T."""
        if self.size == 0:
            return False
        tenant, issuer = principal.tenant, principal.issuer
        if (tenant, issuer, principal.subject) in self.subjects:
            return True
        if principal.credential_id is not None and (tenant, issuer, principal.credential_id) in self.credentials:
            return True
        if not self.before:
            return False
        issued = principal.issued_at
        targets: list[Target] = [(tenant, issuer, principal.subject), (tenant, issuer, None), (tenant, None, None)]
        if principal.owner is not None and self.reaches_owned:
            # Whoever held the owner's token may have made the key: one that was made since is trusted again.
            targets += [(tenant, *principal.owner), (tenant, principal.owner[0], None)]
        for target in targets:
            limit = self.before.get(target)
            if limit is not None and (issued is None or issued < limit):
                return True
        return False


class RevocationList:
    """The list of this process. `start` loads it and keeps it fresh; `contains` asks it.

    With `listen_url` it also listens for notifications; the poll alone keeps the delay below 5 s. With `copy` the
    last list survives a restart while the store is away, for as long as it may be stale.
    """

    def __init__(
        self,
        store: RevocationStore,
        settings: IdentitySettings,
        clock: Clock,
        *,
        listen_url: str | None = None,
        copy: RevocationCopy | None = None,
    ) -> None:
        self._store = store
        self._copy = copy
        self._saving = asyncio.Lock()
        self._saved: tuple[frozenset[Revocation], float] | None = None
        self._asked = self._applied = 0
        self.current = False
        """Did the last question to the store succeed?"""
        self._settings = settings
        self._clock = clock
        self._listen_url = listen_url
        self._index = RevocationIndex()
        self._loaded_at: float | None = None
        self._changes = 0
        self._wake = asyncio.Event()
        self._followers: list[Callable[[], Awaitable[None]]] = []
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load once (an absent database is tolerated here and answered per request) and start to follow."""
        if not await self.refresh():
            await self._load_copy()
        self._tasks = [asyncio.create_task(self._follow(), name="revocation poll")]
        if self._listen_url is not None:
            self._listener = Listener(self._listen_url, [CHANNEL], self.notified)
            self._tasks.append(asyncio.create_task(self._listener.run(), name="revocation listener"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def follow(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` is awaited after every notification and poll: for what changes together with the list."""
        self._followers.append(refresh)

    async def notified(self, channel: str, payload: str | None) -> None:
        """A `NotificationHandler`: something changed, or may have while the connection was away."""
        del channel, payload
        self._changes += 1
        self._wake.set()

    async def refresh(self) -> bool:
        """Load the present list. False when the store cannot be asked; the last list then goes on serving."""
        self._asked += 1
        asked, now = self._asked, self._clock.now()
        try:
            entries = await self._store.active_revocations(now)
        except Unavailable as error:
            _log.warning("revocations not refreshed: %s", error.detail or error.message)
            self.current = False
            return False
        if asked > self._applied:  # of two questions at once the later one knows more
            self._applied = asked
            self._put_in_force(entries, self._clock.monotonic_s())
            self.current = True
            await self._save_copy(entries, now)
        return True

    def _put_in_force(self, entries: Iterable[Revocation], confirmed_s: float) -> None:
        self._index = RevocationIndex.build(entries, reaches_owned=self._settings.owner_revocation_stops_keys)
        self._loaded_at = confirmed_s

    async def _save_copy(self, entries: tuple[Revocation, ...], now: datetime) -> None:
        """When the list has changed, and now and then to say that it was confirmed."""
        if self._copy is None:
            return
        async with self._saving:
            same, now_s = frozenset(entries), self._clock.monotonic_s()
            if self._saved is not None and self._saved[0] == same and now_s - self._saved[1] < SAVE_EVERY_S:
                return
            self._saved = (same, now_s)
            await asyncio.to_thread(self._copy.save_revocations, SavedRevocations(now, entries))

    async def _load_copy(self) -> None:
        saved = None if self._copy is None else await asyncio.to_thread(self._copy.load_revocations)
        if saved is None:
            return
        age_s = max(0.0, (self._clock.now() - saved.confirmed_at).total_seconds())
        _log.warning("the list of revocations is served from its local copy, which is %.0f s old", age_s)
        self._put_in_force(saved.entries, self._clock.monotonic_s() - age_s)

    async def _follow(self) -> None:
        while True:
            # Not `wait_for`: before Python 3.12 it can swallow a cancellation that meets a notification.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.revocation_poll_s):
                    await self._wake.wait()
            self._wake.clear()
            if await self.refresh():
                for refresh in self._followers:
                    await refresh()

    def contains(self, principal: Principal) -> bool:
        """Local and without I/O."""
        return self._index.covers(principal)

    def check_fresh(self) -> None:
        """Raises `Unavailable` when no list was ever loaded or the last one is older than the settings allow."""
        if self.usable:
            return
        raise Unavailable(
            "Credentials cannot be checked for revocation at the moment.",
            code="idp_unavailable",
            hint="retry; your credential may be perfectly valid",
            detail="no recent list of revocations",
        )

    @property
    def usable(self) -> bool:
        """Is there a list that is not older than the settings allow? Without one nobody can be let in."""
        age_s = self.age_s()
        return age_s is not None and age_s <= self._settings.revocation_max_stale_s

    def age_s(self) -> float | None:
        """Seconds since the last successful load; None before the first."""
        return None if self._loaded_at is None else self._clock.monotonic_s() - self._loaded_at

    @property
    def listening(self) -> bool:
        """False without a listener, and while its connection is away."""
        return self._listener is not None and self._listener.connected

    def changes(self) -> int:
        """Grows with every notification: what was read of keys and accounts before may be out of date."""
        return self._changes

    def __len__(self) -> int:
        return self._index.size
