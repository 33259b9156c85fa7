"""The prefix-cache domain of a request: tenants never share what the engine has computed of a prompt. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache

from gateway.flow.context import RequestContext
from gateway.flow.values import Principal


def cache_salt(key: bytes) -> Callable[[Principal, RequestContext, str], bytes]:
    """The prefix-cache domain of a request, by the obligation `prefixCache`: a keyed digest of its tenant, department
    or user, and of the data class; never of anything in the body. Who has no department is a domain of one."""

    @lru_cache(maxsize=4096)
    def salt(*parts: str) -> bytes:
        return hmac.digest(key, "\x1f".join(parts).encode(), hashlib.sha256)

    def of(principal: Principal, context: RequestContext, scope: str) -> bytes:
        parts: tuple[str, ...] = (principal.tenant, context.data_class or "")
        if scope == "department" and principal.department is not None:
            parts = (*parts, "department", principal.department)
        elif scope != "tenant":
            parts = (*parts, "user", principal.issuer, principal.subject)
        return salt(*parts)

    return of
