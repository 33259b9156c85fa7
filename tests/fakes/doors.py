"""An authenticator and an authorizer whose answers a test writes down: token -> principal, role -> actions."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import Unauthenticated
from gateway.flow.context import RequestContext
from gateway.flow.values import Credential, Decision, Effect, ModelCard, Principal


class KnownCallers:
    def __init__(self, callers: Mapping[str, Principal]) -> None:
        self._callers = callers

    async def authenticate(self, credential: Credential, context: RequestContext) -> Principal:
        try:
            return self._callers[credential.value]
        except KeyError:
            raise Unauthenticated("The token is not known.") from None

    def is_revoked(self, principal: Principal) -> bool:
        return False

    def current(self, principal: Principal) -> Principal:
        return principal


class RoleGrants:
    """`version` 1; allows an action to whoever has a role that grants it."""

    version = 1

    def __init__(self, grants: Mapping[str, frozenset[str]]) -> None:
        self._grants = grants

    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        granted = any(action in self._grants.get(role, frozenset()) for role in principal.roles)
        return Decision(
            effect=Effect.ALLOW if granted else Effect.DENY,
            reason="granted by role" if granted else "no role grants it",
            rule_id="r-role" if granted else None,
            policy_version=1,
            policy_sha256="00" * 32,
        )

    def visible_models(self, principal: Principal, context: RequestContext) -> tuple[ModelCard, ...]:
        return ()
