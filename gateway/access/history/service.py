"""The policy in force: which snapshot serves, since when it is confirmed, and how it stays current.

Decides nothing (`evaluator` does) and changes nothing (`editor` does); speaks to the database through the repository.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy, located
from gateway.access.decision.decision_tests import failing_tests
from gateway.access.decision.effective_subject import effective_subject
from gateway.access.decision.evaluator import evaluate
from gateway.access.decision.lint import startup_warnings
from gateway.access.decision.quotas import limits_for
from gateway.access.document.model import PolicySet
from gateway.access.document.parsing import parse_source
from gateway.access.document.problems import PolicyInvalid
from gateway.access.document.source import read_source
from gateway.access.document.vocabulary import INFERENCE_ACTIONS
from gateway.access.history.local_copy import SavedPolicy, SnapshotFile
from gateway.access.history.repository import CHANNEL, PolicyRepository
from gateway.access.history.versions import SYSTEM, NewVersion, StoredVersion, Syntax
from gateway.errors import ConfigError, Unavailable
from gateway.flow.context import Clock, RequestContext
from gateway.flow.values import Decision, LimitRule, ModelCard, Principal
from gateway.settings import AccessSettings
from gateway.storage.postgres import Listener

SAVE_EVERY_S = 60.0
"""How often an unchanged policy's confirmation is written to disk."""
_log = logging.getLogger("esclusa.policy")


@dataclass(frozen=True, slots=True)
class AccessStatus:
    """For readiness and the console. `age_s`: since the database last confirmed the version, None without one."""

    state: Literal["ready", "degraded", "unavailable"]
    version: int | None
    etag: str | None
    age_s: float | None
    reason: str = ""


class AccessService:
    """Implements `flow.ports.Authorizer`. Without a repository the seed file is the policy, as version 1."""

    def __init__(
        self,
        *,
        catalog: Sequence[ModelCard],
        clock: Clock,
        repository: PolicyRepository | None = None,
        seed: Path,
        settings: AccessSettings,
        seals_content: bool = True,
    ) -> None:
        self._catalog = tuple(catalog)
        self._clock = clock
        self._repository = repository
        self._seed = seed
        self._settings = settings
        self.seals_content = seals_content
        self._file = SnapshotFile(settings.snapshot_dir) if settings.snapshot_dir is not None else None
        self._seed_content: NewVersion | None = None
        self._snapshot: Snapshot | None = None
        self._stored: StoredVersion | None = None
        self._confirmed_s: float | None = None
        self._saved_s: float | None = None
        self._reachable = True
        self._warnings: tuple[str, ...] = ()
        self._refreshing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the policy in force, seeding an empty database, and watch for changes from then on.

        Raises `ConfigError` when the seed file is wrong. A database that is down does not stop the start: the local
        copy serves while it is fresh enough, and otherwise `decide` answers 503 until the database is back.
        """
        self._seed_content = self._read_seed()
        if self._repository is None:
            self._put_in_force(self.compile(StoredVersion(1, self._seed_content, self._clock.now())))
            return
        try:
            await self.refresh()
        except Unavailable as error:
            _log.warning("the policy store cannot be reached at start (%s)", error.detail)
            self._reachable = False
            await self._load_local()
        listener = Listener(self._repository.database_url, [CHANNEL], self._notified)
        self._tasks = [asyncio.create_task(listener.run()), asyncio.create_task(self._poll())]
        for task in self._tasks:
            task.add_done_callback(_report_end)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        return evaluate(self.snapshot, principal, action, model, context)

    def limits_of(self, principal: Principal, context: RequestContext) -> tuple[LimitRule, ...]:
        snapshot = self.snapshot
        return limits_for(
            snapshot, principal, effective_subject(snapshot, principal, context.received_at), None, context.purpose
        )

    def visible_models(self, principal: Principal, context: RequestContext) -> tuple[ModelCard, ...]:
        """A virtual model shows only beside a real one: alone it could not serve anything."""
        snapshot = self.snapshot
        usable = tuple(
            card
            for card in self._catalog
            if any(
                evaluate(snapshot, principal, action, card, context).allowed
                for action in INFERENCE_ACTIONS
                if action in card.actions
            )
        )
        return usable if any(not card.virtual for card in usable) else ()

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot in force. Raises `Unavailable` (503 `policy_unavailable`) when none may be served any more."""
        if self._snapshot is None:
            raise Unavailable("The policy is not available.", code="policy_unavailable")
        if self._confirmed_s is not None and self._clock.monotonic_s() - self._confirmed_s > self._settings.max_stale_s:
            raise Unavailable("The policy has not been confirmed for too long.", code="policy_unavailable")
        return self._snapshot

    @property
    def catalog(self) -> tuple[ModelCard, ...]:
        return self._catalog

    @property
    def repository(self) -> PolicyRepository | None:
        return self._repository

    @property
    def settings(self) -> AccessSettings:
        return self._settings

    @property
    def stored(self) -> StoredVersion | None:
        """The version in force with its text and author; None without a database."""
        return self._stored

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notices about the policy in force and the models of this replica, most important first."""
        return self._warnings

    def _put_in_force(self, snapshot: Snapshot) -> None:
        found = startup_warnings(snapshot, seals_content=self.seals_content)
        self._snapshot, self._warnings = snapshot, tuple(warning.sentence for warning in found)
        for sentence in self._warnings:
            _log.warning("policy version %d: %s", snapshot.version, sentence)

    def status(self) -> AccessStatus:
        snapshot = self._snapshot
        age = None if self._confirmed_s is None else self._clock.monotonic_s() - self._confirmed_s
        if snapshot is None:
            return AccessStatus("unavailable", None, None, age, "no policy could be loaded")
        if age is not None and age > self._settings.max_stale_s:
            return AccessStatus("unavailable", snapshot.version, snapshot.etag, age, "unconfirmed for too long")
        if not self._reachable:
            return AccessStatus("degraded", snapshot.version, snapshot.etag, age, "the policy store cannot be reached")
        return AccessStatus("ready", snapshot.version, snapshot.etag, age)

    def compile(self, stored: StoredVersion) -> Snapshot:
        """A stored version against this replica's catalog. Raises `PolicyInvalid`."""
        content = stored.content
        source = read_source(content.source, name=f"policy version {stored.version}", syntax=content.syntax)
        return compile_policy(
            parse_source(source, PolicySet),
            version=stored.version,
            catalog=self._catalog,
            known_models=frozenset(content.known_models),
            source=source,
        )

    async def refresh(self) -> None:
        """Ask the database which version is in force and put it in force here; an empty one is seeded.

        Raises `Unavailable`, and `PolicyInvalid` for a stored version that this build cannot use.
        """
        if self._repository is None:
            return
        async with self._refreshing:
            asked_s = self._clock.monotonic_s()
            number = await self._repository.current_number()
            if number is None and self._seed_content is not None:
                await self._repository.seed(self._seed_content)
            self._reachable = True
            if self._stored is None or self._stored.version != number:
                stored = await self._repository.current()
                if stored is None:
                    raise Unavailable("The policy is not available.", code="policy_unavailable", detail="no head row")
                self._put_in_force(await asyncio.to_thread(self.compile, stored))
                self._stored = stored
                self._saved_s = None
                _log.info("policy version %d is in force", stored.version)
            self._confirmed_s = asked_s
            await self._save_local()

    async def _poll(self) -> None:
        while True:
            # Not `wait_for`: before Python 3.12 it can swallow a cancellation that comes with a notification.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_s):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self.refresh()
            except Unavailable as error:
                if self._reachable:
                    _log.warning("the policy store cannot be reached (%s); the last good policy serves", error.detail)
                self._reachable = False
            except PolicyInvalid as error:
                _log.error("the stored policy cannot be used by this build; the last good one serves: %s", error)
                self._reachable = False

    async def _notified(self, _channel: str, _payload: str | None) -> None:
        self._woken.set()

    async def _save_local(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._file is None or self._stored is None:
            return
        if self._saved_s is None or now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            await asyncio.to_thread(self._file.save, SavedPolicy(self._stored, self._clock.now()))

    async def _load_local(self) -> None:
        saved = await asyncio.to_thread(self._file.load) if self._file is not None else None
        if saved is None:
            return
        age_s = (self._clock.now() - saved.confirmed_at) / timedelta(seconds=1)
        if age_s > self._settings.max_stale_s:
            _log.error("the local policy copy is %.0f s old; it will not be used", age_s)
            return
        self._put_in_force(await asyncio.to_thread(self.compile, saved.stored))
        self._stored = saved.stored
        self._confirmed_s = self._clock.monotonic_s() - max(age_s, 0.0)

    def _read_seed(self) -> NewVersion:
        """The seed file, checked as strictly as a write: references and embedded tests included."""
        try:
            raw = self._seed.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the policy file cannot be read: {error.strerror}",
                file=str(self._seed),
                hint="set `access.policy_file` to a policy document",
            ) from None
        syntax: Syntax = "json" if self._seed.suffix == ".json" else "yaml"
        source = read_source(raw, name=str(self._seed), syntax=syntax)
        document = parse_source(source, PolicySet)
        known = tuple(sorted(card.id for card in self._catalog))
        snapshot = compile_policy(
            document, version=1, catalog=self._catalog, known_models=frozenset(known), source=source
        )
        failed = located(failing_tests(snapshot), source)
        if failed:
            raise PolicyInvalid(failed, source.name)
        return NewVersion(source.text, syntax, document.sha256(), known, SYSTEM, "installed", "seed")


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a policy watcher ended", exc_info=task.exception())
