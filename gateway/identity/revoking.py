"""Revocations as administrators make them: a credential, a subject, or everything issued before a moment.

Owns the order of the steps and what may not be revoked (oneself). The list that enforces them is `revocations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from gateway.errors import Conflict, InvalidDocument, NotFound
from gateway.flow.context import Clock, IdSource
from gateway.identity.accounts import Caller
from gateway.identity.revocation_store import PostgresRevocationStore
from gateway.identity.revocations import Revocation, RevocationKind, RevocationList
from gateway.storage.idempotency import KeyTaken, request_key

KEEP = timedelta(days=367)
"""Entries about tokens are kept until no token they could mean can still be valid."""
CLOCK_TOLERANCE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class RevocationRequest:
    """A revocation to make. `issued_before` None with that kind means now."""

    kind: RevocationKind
    issuer: str | None
    subject: str | None
    credential_id: str | None
    issued_before: datetime | None
    reason: str


class RevocationService:
    """Raises `InvalidDocument` (422), `Conflict` (409), `NotFound` (404), `Unavailable` (503)."""

    def __init__(
        self,
        store: PostgresRevocationStore,
        revocations: RevocationList,
        *,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._revocations = revocations
        self._clock = clock
        self._ids = ids

    async def revoke(self, caller: Caller, asked: RevocationRequest) -> Revocation:
        """In force here on return, everywhere within 5 s."""
        now = self._clock.now()
        _check(asked, now)
        who = caller.principal
        if asked.kind == "subject" and (asked.issuer, asked.subject) == (who.issuer, who.subject):
            raise Conflict("You cannot revoke yourself.", code="would_lock_out", hint="let another administrator do it")
        request = request_key(who, caller.idempotency_key, "revoke", asked.kind, asked)
        known = await self._store.store.replayed_resource(request)
        if known is not None:
            return await self.get(caller, UUID(known))
        moment = (asked.issued_before or now) if asked.kind == "issued_before" else None
        entry = Revocation(
            id=str(self._ids.uuid7()),
            kind=asked.kind,
            tenant=who.tenant,
            issuer=asked.issuer,
            subject=asked.subject,
            credential_id=asked.credential_id,
            issued_before=moment,
            reason=asked.reason,
            created_by=caller.name,
            created_at=now,
            expires_at=None if asked.kind == "subject" else now + KEEP,
        )
        try:
            await self._store.add(entry, request)
        except KeyTaken:
            raise Conflict(
                "A request with this `Idempotency-Key` is being served.", code="request_in_progress"
            ) from None
        await self._propagate()
        return entry

    async def get(self, caller: Caller, revocation_id: UUID) -> Revocation:
        found = await self._store.get(caller.principal.tenant, revocation_id)
        if found is None:
            raise NotFound("There is no such revocation.", param="revocation_id")
        return found

    async def page(
        self, caller: Caller, *, before: UUID | None, limit: int, active: bool
    ) -> tuple[list[Revocation], int]:
        moment = self._clock.now() if active else None
        return await self._store.page(caller.principal.tenant, before=before, limit=limit, active_at=moment)

    async def lift(self, caller: Caller, revocation_id: UUID) -> Revocation:
        """Idempotent. What was stopped stays stopped; new requests are admitted again."""
        await self.get(caller, revocation_id)
        await self._store.lift(caller.principal.tenant, revocation_id, by=caller.name, at=self._clock.now())
        await self._propagate()
        return await self.get(caller, revocation_id)

    async def _propagate(self) -> None:
        await self._revocations.refresh()


def _check(asked: RevocationRequest, now: datetime) -> None:
    """Each kind has its own fields; a field that would be ignored is refused, because somebody relied on it."""
    needed = {"credential": ("issuer", "credential_id"), "subject": ("issuer", "subject"), "issued_before": ()}
    allowed = {
        "credential": ("issuer", "credential_id"),
        "subject": ("issuer", "subject"),
        "issued_before": ("issuer", "subject", "issued_before"),
    }
    for name in ("issuer", "subject", "credential_id", "issued_before"):
        value = getattr(asked, name)
        if value is None and name in needed[asked.kind]:
            raise InvalidDocument(f"`{name}` is needed to revoke a {asked.kind}.", code="invalid_value", param=name)
        if value is not None and name not in allowed[asked.kind]:
            raise InvalidDocument(f"`{name}` has no meaning for `{asked.kind}`.", code="invalid_value", param=name)
    if asked.subject is not None and asked.issuer is None:
        raise InvalidDocument("`issuer` is needed with `subject`.", code="invalid_value", param="issuer")
    moment = asked.issued_before
    if moment is not None and (moment.tzinfo is None or moment > now + CLOCK_TOLERANCE):
        raise InvalidDocument(
            "`issued_before` must have a time zone and must not lie in the future.",
            code="invalid_value",
            param="issued_before",
            hint="tokens issued after now cannot be revoked in advance; revoke the subject instead",
        )
