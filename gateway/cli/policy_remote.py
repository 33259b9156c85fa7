"""`esclusa policy` against a running gateway's admin API. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2

from gateway.cli.policy_files import syntax_of
from gateway.errors import ConfigError

TIMEOUT_S = 60.0
CONTENT_TYPES = {"yaml": "application/yaml", "json": "application/json"}


class Refused(Exception):
    """The gateway said no. `invalid` tells a wrong document (exit 2) from everything else (exit 1)."""

    def __init__(self, status: int, code: str, message: str, hint: str | None) -> None:
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.invalid = status == 422
        super().__init__(f"{code}: {message}" + (f"\n  hint: {hint}" if hint else ""))


@dataclass(frozen=True, slots=True)
class RemotePolicy:
    etag: str
    text: str
    syntax: Literal["yaml", "json"]


class AdminClient:
    """Use as a context manager."""

    def __init__(self, url: str, token: str, *, transport: httpx2.BaseTransport | None = None) -> None:
        self._client = httpx2.Client(
            base_url=f"{url.rstrip('/')}/admin/v1",
            headers={"authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            transport=transport,
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def current(self) -> RemotePolicy:
        answer = self._send("GET", "/policies/current", headers={"accept": CONTENT_TYPES["yaml"]})
        syntax: Literal["yaml", "json"] = "yaml" if "yaml" in answer.headers.get("content-type", "") else "json"
        return RemotePolicy(answer.headers["etag"], answer.text, syntax)

    def version(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self._send("GET", f"/policies/versions/{number}").json()
        return found

    def put(self, path: Path, *, etag: str, reason: str) -> dict[str, Any]:
        headers = {"if-match": etag, **({"x-change-reason": reason} if reason else {})}
        return self._document("PUT", "/policies/current", path, headers=headers)

    def validate(self, path: Path) -> dict[str, Any]:
        return self._document("POST", "/policies:validate", path)

    def simulate(self, path: Path, *, limit: int) -> dict[str, Any]:
        return self._document("POST", "/policies:simulate", path, params={"limit": limit})

    def explain(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._send("POST", "/authz:explain", json=body).json()
        return found

    def _document(self, method: str, route: str, path: Path, **options: Any) -> dict[str, Any]:
        headers = {"content-type": CONTENT_TYPES[syntax_of(path)], **options.pop("headers", {})}
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(path)) from None
        found: dict[str, Any] = self._send(method, route, content=content, headers=headers, **options).json()
        return found

    def _send(self, method: str, route: str, **options: Any) -> httpx2.Response:
        try:
            answer = self._client.request(method, route, **options)
        except httpx2.TransportError as error:
            raise Refused(0, "unreachable", f"the gateway does not answer ({type(error).__name__})", None) from None
        if answer.is_success:
            return answer
        try:
            error_body = answer.json()["error"]
            raise Refused(answer.status_code, error_body["code"], error_body["message"], error_body.get("hint"))
        except (ValueError, KeyError, TypeError):
            raise Refused(
                answer.status_code, "unexpected_answer", f"status {answer.status_code} without an error body", None
            ) from None
