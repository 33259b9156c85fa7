"""Cross-origin requests of browsers to `/v1`, where `http.cors_origins` names their origins (Fetch standard, CORS).

Answers a preflight before any credential is read, since browsers send none with it. No cookies are ever accepted, and
the admin API is never opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

SHOWN = (
    "request-id",
    "retry-after",
    "x-request-id",
    "x-client-request-id",
    "x-esclusa-audit-id",
    "x-esclusa-cached-tokens",
    "x-esclusa-cost",
    "x-esclusa-ignored",
    "x-esclusa-model",
    "x-esclusa-route",
    "x-esclusa-route-reason",
    "x-esclusa-policy-version",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)
"""Headers of an answer that a page may read."""
PREFLIGHT_TTL_S = 600


class CrossOrigin:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._opened = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(SHOWN),
            max_age=PREFLIGHT_TTL_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (self._opened if is_open else self._app)(scope, receive, send)
