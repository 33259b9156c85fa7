"""Every error a caller can see, in one tree. Knows no HTTP framework; `gateway.api` renders it.

GatewayError
├── InvalidRequest           400  the body or a parameter is wrong
│   ├── AmbiguousCredentials 400  two credential channels in one request
│   ├── ContextLengthExceeded 400 prompt + max_tokens do not fit
│   └── BlockedByPolicy      400  a guardrail refused the content
├── Unauthenticated          401  missing or invalid token
├── NotPermitted             403  authenticated, but not allowed
├── NotFound                 404  unknown (or hidden) model or resource
├── RequestTimeout           408  the body did not arrive in time
├── Conflict                 409  the change would break an invariant
├── PreconditionFailed       412  stale ETag
├── RequestTooLarge          413
├── UnsupportedMediaType     415
├── UnknownField             422  admin API: a field that does not exist
├── InvalidDocument          422  admin API: a document that can be read but not accepted
├── PreconditionRequired     428  If-Match missing
├── HeadersTooLarge          431
├── RateLimited              429  a window is full, try again soon
├── BudgetExceeded           429  a budget is spent, do not retry
├── UpstreamFailed           502  a backend answered nonsense or not at all
└── Unavailable              503  a dependency is down or still loading
    ├── DeadlineExceeded     503  the request's time was over before there was an answer
    └── (codes: idp_unavailable, policy_unavailable, audit_unavailable, database_unavailable,
                guardrails_unavailable, engine_unavailable, model_loading, overloaded, gateway_stopping,
                content_key_missing)

Configuration mistakes found at start are `ConfigError`: they never reach a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class GatewayError(Exception):
    """An answer other than success, ready to be rendered in OpenAI's shape.

    `message` is public: it must never hold a token, a prompt, SQL, a path or an upstream's text.
    `detail` is for the audit record and the log only.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    denies: bool = False
    """A denial: a refusal by authentication, policy, limits or guardrails. Anything else is an error: a request that
    is malformed, or that could not be served. Unknown counts as hidden, since nobody can tell them apart."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else type(self).code
        self.param = param
        self.hint = hint
        self.headers: dict[str, str] = dict(headers or {})
        self.detail = detail


class InvalidRequest(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class AmbiguousCredentials(InvalidRequest):
    code = "ambiguous_credentials"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class BlockedByPolicy(InvalidRequest):
    code, denies = "blocked_by_policy", True


class Unauthenticated(GatewayError):
    status, type, code, denies = 401, "authentication_error", "invalid_token", True

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint, detail=detail)
        # RFC 6750 section 3: no error attribute when no credential was sent at all.
        challenge = "Bearer" if self.code == "missing_token" else 'Bearer error="invalid_token"'
        self.headers.setdefault("WWW-Authenticate", challenge)


class NotPermitted(GatewayError):
    status, type, code, denies = 403, "permission_error", "not_permitted", True


class NotFound(GatewayError):
    status, type, code, denies = 404, "invalid_request_error", "not_found", True


class RequestTimeout(GatewayError):
    status, type, code = 408, "invalid_request_error", "request_timeout"


class Conflict(GatewayError):
    status, type, code = 409, "invalid_request_error", "conflict"


class PreconditionFailed(GatewayError):
    status, type, code = 412, "invalid_request_error", "etag_mismatch"


class RequestTooLarge(GatewayError):
    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(GatewayError):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class UnknownField(GatewayError):
    status, type, code = 422, "invalid_request_error", "unknown_field"


class InvalidDocument(GatewayError):
    status, type, code = 422, "invalid_request_error", "invalid_document"


class PreconditionRequired(GatewayError):
    status, type, code = 428, "invalid_request_error", "if_match_required"


class HeadersTooLarge(GatewayError):
    status, type, code = 431, "invalid_request_error", "headers_too_large"


class RateLimited(GatewayError):
    """A window is full. Carries `retry-after` so that SDKs wait the right time."""

    status, type, code, denies = 429, "rate_limit_exceeded", "requests_rate_limited", True


class BudgetExceeded(GatewayError):
    """A budget is spent. `x-should-retry: false` stops SDKs from hammering a closed door."""

    status, type, code, denies = 429, "insufficient_quota", "budget_exceeded", True

    def __init__(self, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint, headers={"x-should-retry": "false", **(headers or {})})


class UpstreamFailed(GatewayError):
    status, type, code = 502, "server_error", "upstream_failed"


class Unavailable(GatewayError):
    status, type, code = 503, "server_error", "unavailable"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        retry_after_s: int = 5,
        detail: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint, headers={"retry-after": str(retry_after_s)}, detail=detail)


class DeadlineExceeded(Unavailable):
    """No other candidate is tried: its time would be over as well."""

    code = "deadline_exceeded"


_DENIED = frozenset(kind.status for kind in (Unauthenticated, NotPermitted, NotFound, RateLimited, BudgetExceeded))


def is_denial(status: int, code: str | None) -> bool:
    """`GatewayError.denies` of an answer of which no more is left than this."""
    return status in _DENIED or code == BlockedByPolicy.code


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a change may not be made, for functions that decide; `code` is the public error code."""

    code: str
    message: str
    hint: str
    param: str | None = None

    def refusal(self) -> NotPermitted | Conflict:
        """The error to raise: what would lock everybody out is a conflict, also for those who may do everything."""
        kind = Conflict if self.code == "would_lock_out" else NotPermitted
        return kind(self.message, code=self.code, hint=self.hint, param=self.param)


class ConfigError(Exception):
    """A configuration or policy file that cannot be used; ends the start.

    `str()` reads: `<file>:<line>:<column>: <what was found>; expected <what>; hint`.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.file, self.line, self.column, self.hint = message, file, line, column, hint
        where = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(": ".join(part for part in (where, message) if part) + (f"\n  hint: {hint}" if hint else ""))
