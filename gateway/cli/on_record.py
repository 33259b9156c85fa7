"""The audit record of a command that changes the trail itself: who at the keyboard did what, and why."""

from __future__ import annotations

from collections.abc import Mapping
from getpass import getuser
from typing import Any

from gateway.flow.values import AdminEvent, Principal
from gateway.wiring.commands import command_context

ISSUER = "esclusa-cli"


def cli_event(command: str, action: str, *, tenant: str, reason: str, diff: Mapping[str, Any]) -> AdminEvent:
    """A change by the operating-system user, for the auditors of `tenant`."""
    return AdminEvent(
        context=command_context(command),
        principal=Principal(tenant, ISSUER, getuser()),
        kind="admin",
        action=action,
        target="audit",
        allowed=True,
        status=200,
        reason=reason,
        diff=diff,
    )
