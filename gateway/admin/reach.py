"""The tenants that a caller of the admin API sees: their own, or all with `tenants.all`. Decides no permission."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.access.history.service import AccessService
from gateway.admin.guard import AdminCall
from gateway.errors import NotPermitted
from gateway.flow.values import ANONYMOUS

ACROSS = "tenants.all"


@dataclass(frozen=True, slots=True)
class Reach:
    tenant: str
    everywhere: bool = False

    def covers(self, tenant: str) -> bool:
        """True also for objects of no tenant, such as the installation's own first policy."""
        return self.everywhere or tenant in (self.tenant, ANONYMOUS.tenant)

    @property
    def tenants(self) -> tuple[str, ...] | None:
        """For a query; None: no bound."""
        return None if self.everywhere else (self.tenant,)

    def require(self, tenant: str, param: str) -> None:
        """Raises `NotPermitted` (403)."""
        if not self.covers(tenant):
            raise NotPermitted(
                "That is another tenant.",
                param=param,
                hint=f"leave the tenant out, or ask for `{ACROSS}`",
                detail="another tenant",
            )


def reach_of(access: AccessService, call: AdminCall) -> Reach:
    return Reach(call.principal.tenant, holds(access, call, ACROSS))


def holds(access: AccessService, call: AdminCall, action: str) -> bool:
    """Does this caller hold another permission than that of the route?"""
    return access.decide(call.principal, action, None, call.context).allowed
