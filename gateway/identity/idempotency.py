"""`Idempotency-Key`: the same request twice has the effect of one. Values and the look-up; storage is the store's."""

from __future__ import annotations

import hashlib

from gateway.errors import Conflict
from gateway.flow.values import Principal
from gateway.identity.store import IdentityStore, RequestKey


def request_key(caller: Principal, key: str | None, action: str, name: str, content: object) -> RequestKey | None:
    """None without a key. `content` is a frozen value whose `repr` is its whole meaning."""
    if key is None:
        return None
    digest = hashlib.sha256(repr((action, name, _ordered(content))).encode()).hexdigest()
    return RequestKey(caller, key, digest)


async def replayed_resource(store: IdentityStore, request: RequestKey | None) -> str | None:
    """The result of the same request before, or None. Raises `Conflict` when the key stood for another request."""
    if request is None:
        return None
    served = await store.served(request.caller, request.key)
    if served is None:
        return None
    if served.request_sha256 != request.request_sha256:
        raise Conflict(
            "This `Idempotency-Key` was used for another request.",
            code="idempotency_key_reused",
            hint="send a fresh key with every different request",
        )
    return served.resource


def _ordered(content: object) -> object:
    """Sets have no order of their own, and their `repr` differs from process to process."""
    fields = getattr(content, "__dataclass_fields__", None)
    if fields is not None:
        return [(name, _ordered(getattr(content, name))) for name in fields]
    if isinstance(content, frozenset):
        return sorted(content)
    return content
