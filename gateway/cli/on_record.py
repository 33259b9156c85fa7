"""Audit records of commands that change the database directly: through this machine's spool, like a gateway's."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from getpass import getuser
from importlib.metadata import version as installed_version
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.service import AuditService
from gateway.errors import ConfigError
from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.flow.values import AdminEvent, Principal
from gateway.places import spool_dir
from gateway.settings import Settings

ISSUER = "esclusa-cli"


async def open_audit(engine: AsyncEngine, settings: Settings, stack: AsyncExitStack) -> AuditService:
    """A run of its own beside the gateways, for what a command puts on record. Raises `ConfigError`."""
    folder = spool_dir(settings)
    audit = AuditService(
        engine,
        settings=settings.audit,
        spool_dir=folder,
        clock=SystemClock(),
        ids=SystemIds(),
        node_id=socket.gethostname(),
        gateway_version=installed_version("esclusa"),
    )
    try:
        await audit.start()
    except OSError as error:
        raise ConfigError(
            f"the audit spool {folder} cannot be written ({error.strerror}), so nothing was changed",
            hint="run this as the user of the gateway, or set ESCLUSA_AUDIT__SPOOL_DIR",
        ) from None
    stack.push_async_callback(audit.close)
    return audit


def cli_event(command: str, action: str, *, tenant: str, reason: str, diff: Mapping[str, Any]) -> AdminEvent:
    """A change by the operating-system user, for the auditors of `tenant`."""
    clock = SystemClock()
    return AdminEvent(
        context=RequestContext(
            request_id=SystemIds().uuid7(),
            received_at=clock.now(),
            started_s=clock.monotonic_s(),
            route=command,
            method="CLI",
        ),
        principal=Principal(tenant, ISSUER, getuser()),
        kind="admin",
        action=action,
        target="audit",
        allowed=True,
        status=200,
        reason=reason,
        diff=diff,
    )
