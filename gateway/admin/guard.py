"""The door of every admin route: who calls, whether the policy lets them, and a record of each refusal.

Text in a query or a path must be plain: the stores cannot hold U+0000, and no name has control characters.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request

from gateway.api.http.credentials import read_credential
from gateway.api.http.errors import refused_parameters
from gateway.errors import GatewayError, InvalidRequest, NotPermitted
from gateway.flow.context import RequestContext
from gateway.flow.ports import AuditLog, Authenticator, Authorizer
from gateway.flow.values import ANONYMOUS, AdminEvent, Decision, Principal

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PLAIN_NAME = re.compile(r"\A[A-Za-z0-9_]{1,64}\Z")


@dataclass(slots=True)
class OnRecord:
    """Whether a call has left its event."""

    made: bool = False


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A permitted call of the admin API."""

    context: RequestContext
    principal: Principal
    decision: Decision
    action: str
    on_record: OnRecord = field(default_factory=OnRecord, compare=False, repr=False)


class PermissionGuard:
    """Builds FastAPI dependencies. `require("audit.read")` answers 401, 403 or an `AdminCall`.

    The request context is made by the API middleware and read from `scope["state"]["context"]`.
    """

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer, audit: AuditLog) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._audit = audit

    def require(self, action: str) -> Callable[[Request], AsyncIterator[AdminCall]]:
        """Record a refusal that the route raised afterwards and did not record itself, an invalid query included."""

        async def permitted(request: Request) -> AsyncIterator[AdminCall]:
            context: RequestContext = request.scope["state"]["context"]
            principal = ANONYMOUS
            try:
                principal = await self._authenticator.authenticate(read_credential(request.scope["headers"]), context)
                decision = self._authorizer.decide(principal, action, None, context)
                if not decision.allowed:
                    raise NotPermitted(
                        f"`{action}` is not permitted for you: {decision.reason}",
                        hint="ask a policy administrator for a role that grants it",
                        detail=None if decision.rule_id is None else f"rule {decision.rule_id}",
                    )
                require_plain_text(request)
            except GatewayError as error:
                await self._refused(context, principal, action, error)
                raise
            call = AdminCall(context=context, principal=principal, decision=decision, action=action)
            try:
                yield call
            except RequestValidationError as error:
                await self._record_refusal(call, refused_parameters(error, request))
                raise
            except GatewayError as error:
                await self._record_refusal(call, error)
                raise

        return permitted

    def identify(self, action: str) -> Callable[[Request], Awaitable[Principal]]:
        """For what every known caller may read: 401 for strangers, on record like any refusal."""

        async def known_caller(request: Request) -> Principal:
            context: RequestContext = request.scope["state"]["context"]
            try:
                caller = await self._authenticator.authenticate(read_credential(request.scope["headers"]), context)
            except GatewayError as error:
                await self._refused(context, ANONYMOUS, action, error)
                raise
            require_plain_text(request)
            return caller

        return known_caller

    async def _record_refusal(self, call: AdminCall, error: GatewayError) -> None:
        if not call.on_record.made:
            target = call.context.route.removeprefix("/admin/v1/")
            await self.record(
                call, kind="access", target=target, status=error.status, error_code=error.code, reason=error.detail
            )

    async def _refused(self, context: RequestContext, principal: Principal, action: str, error: GatewayError) -> None:
        await self._audit.admin(
            AdminEvent(
                context=context,
                principal=principal,
                kind="access",
                action=action,
                target=context.route,
                allowed=False,
                status=error.status,
                error_code=error.code,
                reason=error.detail,
            )
        )

    async def record(
        self,
        call: AdminCall,
        *,
        kind: str,
        target: str,
        status: int = 200,
        reason: str | None = None,
        before_etag: str | None = None,
        after_etag: str | None = None,
        diff: dict[str, object] | None = None,
        approver: str | None = None,
        error_code: str | None = None,
    ) -> None:
        """Write the event of a call that was let through: a change (`admin`) or a read (`access`)."""
        call.on_record.made = True
        await self._audit.admin(
            AdminEvent(
                context=call.context,
                principal=call.principal,
                kind="admin" if kind == "admin" else "access",
                action=call.action,
                target=target,
                allowed=error_code is None,
                status=status,
                reason=reason,
                before_etag=before_etag,
                after_etag=after_etag,
                diff=diff,
                approver=approver,
                error_code=error_code,
                policy_version=call.decision.policy_version,
                rule_id=call.decision.rule_id,
            )
        )


def require_plain_text(request: Request) -> None:
    """Raises `InvalidRequest` (422) naming the first parameter of query or path that holds a control character."""
    for name, value in (*request.query_params.multi_items(), *request.path_params.items()):
        if _CONTROL.search(name) or _CONTROL.search(str(value)):
            shown = name if _PLAIN_NAME.match(name) else None
            refused = InvalidRequest(
                f"{f'`{shown}`' if shown else 'A parameter'} holds a control character.",
                code="invalid_value",
                param=shown,
                hint="send plain text",
            )
            refused.status = 422
            raise refused
