"""`/metrics` as an application of its own, for its own listener. Knows the registry, not what is in it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Receive, Scope, Send


def metrics_app(registry: CollectorRegistry) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - ASGI
        if scope["type"] != "http":
            return
        found = scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        encode, content_type = choose_encoder(accept)
        body = encode(registry) if found else b"see /metrics\n"
        headers = [
            (b"content-type", content_type.encode() if found else b"text/plain"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})

    return app
