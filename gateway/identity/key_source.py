"""The key source of a provider: discovery, a fixed URL, or a file of this machine.

Owns the fetch itself: bytes, sizes, status codes, the issuer check of a discovery document. A token never picks an
address: every address is configuration, or comes from the discovery document of a configured issuer and stays on an
allowed host. Decides nothing about when to fetch; that is `jwks`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2

from gateway.errors import ConfigError
from gateway.identity.providers import Provider
from gateway.identity.strict_json import StrictJsonError, parse_object

_MAX_DEPTH = 12
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*(\d{1,9})(?:$|[,\s])", re.IGNORECASE)


class FetchError(Exception):
    """The keys could not be had. `str()` is for logs: it names the fault, never the content."""


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    max_age_s: float | None = None


class KeyFetcher(Protocol):
    async def get(self, url: str, *, timeout_s: float, max_bytes: int) -> Fetched:
        """GET one document. No redirects, no cookies, no proxies from the environment; raises `FetchError`."""
        ...

    async def aclose(self) -> None: ...


class HttpKeyFetcher:
    """`KeyFetcher` over httpx2. One small pool; the whole exchange, not each read, has the deadline.

    `ca_file` replaces the usual roots (a private CA); `proxy` is used for every fetch, and none from the environment.
    """

    def __init__(self, *, ca_file: Path | None = None, proxy: str | None = None) -> None:
        self._ca_file = ca_file
        self._proxy = proxy
        self._client: httpx2.AsyncClient | None = None

    def check(self) -> None:
        """Read the roots now. Raises `ConfigError`, so that a wrong path ends the start and not the first login."""
        if self._client is None:
            self._client = self._open()

    def _open(self) -> httpx2.AsyncClient:
        try:
            verify: ssl.SSLContext | bool = True
            if self._ca_file is not None:
                verify = ssl.create_default_context(cafile=str(self._ca_file))
            return httpx2.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                verify=verify,
                proxy=self._proxy,
                limits=httpx2.Limits(max_connections=8, max_keepalive_connections=0),
                headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "esclusa"},
            )
        except (OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigError(
                f"key sets cannot be fetched with these settings: {type(error).__name__}",
                hint="check `identity.jwks_ca_file` and `identity.jwks_proxy`",
            ) from None

    async def get(self, url: str, *, timeout_s: float, max_bytes: int) -> Fetched:
        if self._client is None:
            self._client = self._open()
        try:
            async with asyncio.timeout(timeout_s), self._client.stream("GET", url, timeout=timeout_s) as response:
                return await self._read(response, max_bytes)
        except TimeoutError:
            raise FetchError(f"no complete answer within {timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise FetchError(f"transport: {type(error).__name__}") from None
        except (httpx2.InvalidURL, UnicodeError):
            raise FetchError("the address is not a URL") from None

    @staticmethod
    async def _read(response: httpx2.Response, max_bytes: int) -> Fetched:
        if response.status_code != 200:
            raise FetchError(f"status {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise FetchError("the answer is compressed although it was not to be")
        declared = response.headers.get("content-length", "0")
        if not declared.isdigit() or int(declared) > max_bytes:
            raise FetchError(f"the answer is larger than {max_bytes} bytes")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise FetchError(f"the answer is larger than {max_bytes} bytes")
        return Fetched(bytes(body), _max_age(response.headers.get("cache-control", "")))

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class KeySource(Protocol):
    async def load(self) -> tuple[dict[str, Any], float | None]:
        """The JWK set and how long its publisher lets it be kept (seconds). Raises `FetchError`."""
        ...


class HttpKeySource:
    """A key set behind http(s), found by discovery unless its address is configured."""

    def __init__(self, provider: Provider, fetcher: KeyFetcher, *, timeout_s: float, max_bytes: int) -> None:
        self._provider = provider
        self._fetcher = fetcher
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    async def load(self) -> tuple[dict[str, Any], float | None]:
        url = self._provider.settings.jwks_url or await self._discover()
        fetched = await self._fetcher.get(url, timeout_s=self._timeout_s, max_bytes=self._max_bytes)
        return _document(fetched.body), fetched.max_age_s

    async def _discover(self) -> str:
        """OpenID Connect Discovery 1.0 section 4: the document must be about exactly our issuer."""
        address = self._provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
        fetched = await self._fetcher.get(address, timeout_s=self._timeout_s, max_bytes=self._max_bytes)
        document = _document(fetched.body)
        if document.get("issuer") != self._provider.issuer:
            raise FetchError("the discovery document is about another issuer")
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            raise FetchError("the discovery document has no jwks_uri")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise FetchError("jwks_uri is not a URL") from None
        if parts.scheme != "https" and not (parts.scheme == "http" and self._provider.settings.allow_http):
            raise FetchError("jwks_uri is not https")
        if "\\" in url or parts.username or (parts.hostname or "").lower() not in self._provider.jwks_hosts:
            raise FetchError("jwks_uri is on a host that is not allowed")
        return url


class FileKeySource:
    """A key set in a local file; read again at each refresh, so replacing the file rotates keys."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    async def load(self) -> tuple[dict[str, Any], float | None]:
        try:
            body = await asyncio.to_thread(self._read)
        except OSError as error:
            raise FetchError(f"file: {type(error).__name__}") from None
        if len(body) > self._max_bytes:
            raise FetchError(f"the file is larger than {self._max_bytes} bytes")
        return _document(body), None

    def _read(self) -> bytes:
        with self._path.open("rb") as stream:
            return stream.read(self._max_bytes + 1)


def _document(body: bytes) -> dict[str, Any]:
    try:
        return parse_object(body, max_depth=_MAX_DEPTH)
    except StrictJsonError as error:
        raise FetchError(f"unusable document: {error}") from None


def _max_age(cache_control: str) -> float | None:
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return 0.0
    found = _MAX_AGE.search(cache_control)
    return float(found.group(1)) if found else None
