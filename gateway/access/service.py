"""The policy in force: which snapshot serves, since when it is confirmed, and what it decides.

Decides nothing itself (`evaluator` does) and speaks to the database only through the repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.access.compiler import compile_policy
from gateway.access.document import PolicySet
from gateway.access.evaluator import evaluate
from gateway.access.parsing import parse_source
from gateway.access.snapshot import Snapshot
from gateway.access.source import read_source
from gateway.access.vocabulary import INFERENCE_ACTIONS
from gateway.errors import ConfigError, Unavailable
from gateway.flow.context import Clock, RequestContext
from gateway.flow.values import Decision, ModelCard, Principal
from gateway.settings import AccessSettings


class AccessService:
    """Implements `flow.ports.Authorizer`."""

    def __init__(
        self,
        *,
        catalog: Sequence[ModelCard],
        clock: Clock,
        repository: None = None,
        seed: Path,
        settings: AccessSettings,
    ) -> None:
        self._catalog = tuple(catalog)
        self._clock = clock
        self._repository = repository
        self._seed = seed
        self._settings = settings
        self._snapshot: Snapshot | None = None

    async def start(self) -> None:
        """Load the policy in force. Raises `ConfigError` when the seed file is wrong."""
        self._snapshot = self._compile_seed()

    async def close(self) -> None:
        pass

    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        return evaluate(self.snapshot, principal, action, model, context)

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
        """Raises `Unavailable` (503 `policy_unavailable`) when nothing may be served."""
        if self._snapshot is None:
            raise Unavailable("The policy is not available.", code="policy_unavailable")
        return self._snapshot

    def _compile_seed(self) -> Snapshot:
        try:
            raw = self._seed.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the policy file cannot be read: {error.strerror}",
                file=str(self._seed),
                hint="set `access.policy_file` to a policy document",
            ) from None
        source = read_source(raw, name=str(self._seed))
        known = frozenset(card.id for card in self._catalog)
        return compile_policy(
            parse_source(source, PolicySet), version=1, catalog=self._catalog, known_models=known, source=source
        )
