"""The permissions of the identity routes, and their callers as the identity domain knows them."""

from __future__ import annotations

from gateway.admin.guard import AdminCall
from gateway.identity.accounts import Caller

READ, WRITE = "identity.read", "identity.write"


def caller_of(call: AdminCall, idempotency_key: str | None = None) -> Caller:
    return Caller(call.principal, call.context, idempotency_key)
