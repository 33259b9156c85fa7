"""Permission of an answer under way to go on, by policy and the caller's rights as they are now."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import Unavailable
from gateway.flow.inspection import stricter
from gateway.flow.ports import Authenticator, Authorizer
from gateway.flow.refusals import permits
from gateway.flow.stages import Reserved


def permission(authenticator: Authenticator, authorizer: Authorizer, reserved: Reserved) -> Callable[[], bool]:
    """Asked between chunks: decides again only when the policy or the caller's rights have changed. Without a policy
    that may still be served nothing goes on; nor does an answer whose guard would now be stricter."""
    request, card = reserved.request, reserved.served
    seen, caller = reserved.decision.policy_version, reserved.principal

    def permitted() -> bool:
        nonlocal seen, caller
        current = authenticator.current(reserved.principal)
        if current is not caller and current == caller:
            caller = current
        try:
            if authorizer.version == seen and current is caller:
                return True
            decision = authorizer.decide(current, request.action, card, reserved.context)
        except Unavailable:
            return False
        seen, caller = decision.policy_version, current
        return permits(decision, request) and not stricter(decision, reserved.decision)

    return permitted
