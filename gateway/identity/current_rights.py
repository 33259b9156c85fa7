"""Current rights of API keys with running answers: their accounts can be narrowed while they run.

Remembers the keys that were asked about lately and reads them again, all in one query, at every change of keys and
accounts and at every poll. Tokens of an identity provider carry their rights and never change. Decides nothing.
"""

from __future__ import annotations

import logging

from gateway.errors import Unavailable
from gateway.flow.context import Clock
from gateway.flow.values import Principal
from gateway.identity.api_keys import PROVIDER, ApiKeyRepository, principal_of

_log = logging.getLogger("esclusa.identity")

FORGET_S = 30.0
"""A key that no running answer asked about for so long is read no more; the next question takes it up again."""


class CurrentRights:
    """`of` between the chunks of an answer, `refresh` whenever something may have changed; one event loop."""

    def __init__(self, repository: ApiKeyRepository, clock: Clock) -> None:
        self._repository, self._clock = repository, clock
        self._known: dict[str, Principal] = {}
        self._asked_s: dict[str, float] = {}

    def of(self, principal: Principal) -> Principal:
        """The principal with the rights it has now, as far as is known. No I/O."""
        key_id = principal.credential_id
        if principal.provider != PROVIDER or key_id is None:
            return principal
        self._asked_s[key_id] = self._clock.monotonic_s()
        return self._known.get(key_id, principal)

    async def refresh(self) -> None:
        """Read again the keys in use. While the database is away what is known stays."""
        old = self._clock.monotonic_s() - FORGET_S
        for key_id in [key_id for key_id, asked_s in self._asked_s.items() if asked_s < old]:
            del self._asked_s[key_id]
            self._known.pop(key_id, None)
        if not self._asked_s:
            return
        try:
            found = await self._repository.find_keys(tuple(self._asked_s))
        except Unavailable as error:
            _log.warning("rights of running answers not refreshed: %s", error.detail or error.message)
            return
        for record in found:
            self._known[record.key_id] = principal_of(record)
