"""A test issuer: key pairs, tokens good and bad, and a real loopback HTTP server for its key set.

The server counts fetches and can misbehave (`fault`): slow, 500, huge, html, redirect, empty, chunked-huge, gzip.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS

from gateway.settings import IdentitySettings, ProviderSettings

ISSUER = "https://idp.test/realms/corp"
AUDIENCE = "ai-gateway"
_MAKERS: dict[str, Any] = {
    "RS": lambda: rsa.generate_private_key(65537, 2048),
    "PS": lambda: rsa.generate_private_key(65537, 2048),
    "ES": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed": lambda: ed25519.Ed25519PrivateKey.generate(),
}
_FAMILY: dict[str, Any] = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}
_POOL: dict[tuple[str, int], Any] = {}


def private_key(algorithm: str, number: int = 0) -> Any:
    """Key `number` for `algorithm`; made once per process, because RSA keys are slow to make."""
    slot = (algorithm[:2], number)
    if slot not in _POOL:
        _POOL[slot] = _MAKERS[algorithm[:2]]()
    return _POOL[slot]


def public_jwk(key: Any, kid: str, algorithm: str, **more: Any) -> dict[str, Any]:
    jwk = _FAMILY[algorithm[:2]].to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    return {**jwk, "kid": kid, "alg": algorithm, "use": "sig", **more}


@dataclass
class TestIssuer:
    """Keys by kid. `add` and `remove` rotate; the served key set follows at once."""

    __test__ = False

    issuer: str = ISSUER
    audience: str = AUDIENCE
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    extra_jwks: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def with_keys(cls, **kids: str) -> TestIssuer:
        """`with_keys(k1="RS256", e1="ES256")`."""
        issuer = cls()
        for number, (kid, algorithm) in enumerate(kids.items()):
            issuer.add(kid, algorithm, number)
        return issuer

    def add(self, kid: str, algorithm: str = "RS256", number: int = 0) -> None:
        self.keys[kid] = (algorithm, private_key(algorithm, number))

    def remove(self, kid: str) -> None:
        del self.keys[kid]

    def jwks(self) -> dict[str, Any]:
        return {"keys": [public_jwk(key, kid, alg) for kid, (alg, key) in self.keys.items()] + self.extra_jwks}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Base claims of a person; a value of `...` removes the claim."""
        now = int(time.time())
        base: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": "u-1042",
            "azp": "chat-ui",
            "iat": now,
            "exp": now + 300,
            "typ": "Bearer",
            "realm_access": {"roles": ["analyst"]},
        }
        return {name: value for name, value in {**base, **changes}.items() if value is not ...}

    def token(self, kid: str = "k1", *, header: dict[str, Any] | None = None, key: Any = None, **changes: Any) -> str:
        """A token signed by `kid` (or by `key`); `changes` apply to the claims."""
        return self.sign(json.dumps(self.claims(**changes)).encode(), kid, header=header, key=key)

    def sign(self, payload: bytes, kid: str = "k1", *, header: dict[str, Any] | None = None, key: Any = None) -> str:
        algorithm, own = self.keys[kid]
        headers = {"typ": "JWT", "alg": algorithm, "kid": kid, **(header or {})}
        shown = {name: value for name, value in headers.items() if value is not ...}
        return raw_token(json.dumps(shown).encode(), payload, algorithm, own if key is None else key)

    def provider(self, **changes: Any) -> ProviderSettings:
        base: dict[str, Any] = {
            "name": "corp",
            "type": "keycloak",
            "issuer": self.issuer,
            "audiences": (self.audience,),
            "allowed_clients": ("chat-ui", "batch-svc"),
        }
        return ProviderSettings(**{**base, **changes})

    def settings(self, *, provider: dict[str, Any] | None = None, **changes: Any) -> IdentitySettings:
        return IdentitySettings(providers=(self.provider(**(provider or {})),), **changes)

    async def load(self) -> tuple[dict[str, Any], float | None]:
        """Makes the issuer a `KeySource` of its own."""
        return self.jwks(), None


def raw_token(header: bytes, payload: bytes, algorithm: str, key: Any) -> str:
    """Any header and payload bytes, signed as `algorithm` whatever the header says; `none` signs with nothing."""
    signing_input = jwt.utils.base64url_encode(header) + b"." + jwt.utils.base64url_encode(payload)
    if algorithm == "none":
        return (signing_input + b".").decode()
    signer = PyJWS().get_algorithm_by_name("EdDSA" if algorithm == "Ed25519" else algorithm)
    return (signing_input + b"." + jwt.utils.base64url_encode(signer.sign(signing_input, key))).decode()


class JwksServer:
    """Discovery and key set on loopback HTTP. `async with JwksServer(issuer) as server`."""

    def __init__(self, issuer: TestIssuer, *, tls: ssl.SSLContext | None = None) -> None:
        self.issuer = issuer
        self.tls = tls
        self.jwks_uri: str | None = None
        self.fault: str | None = None
        self.fetches = 0
        self.paths: list[str] = []
        self.cache_control: str | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> JwksServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.base = f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"
        self.issuer.issuer = self.base
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def stop(self) -> None:
        """The provider goes down: connections are refused from now on."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def restart(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split(b" ", 2)[1].decode()
            self.paths.append(path)
            if path != "/.well-known/openid-configuration":
                self.fetches += 1
            await self._answer(path, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/.well-known/openid-configuration":
            document = {"issuer": self.issuer.issuer, "jwks_uri": self.jwks_uri or f"{self.base}/jwks"}
            writer.write(_http(200, json.dumps(document).encode()))
            return
        fault = self.fault
        body = json.dumps(self.issuer.jwks()).encode()
        if fault == "slow":
            await asyncio.sleep(30)
        if fault == "500":
            writer.write(_http(500, b"{}"))
        elif fault == "html":
            writer.write(_http(200, b"<html>sign in</html>", "text/html"))
        elif fault == "redirect":
            writer.write(_http(302, b"", extra=f"location: {self.base}/elsewhere\r\n"))
        elif fault == "empty":
            writer.write(_http(200, b'{"keys": []}'))
        elif fault == "gzip":
            writer.write(_http(200, b"\x1f\x8b" + bytes(64), extra="content-encoding: gzip\r\n"))
        elif fault == "huge":
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n")
            for _ in range(1600):  # up to 100 MB, if the reader is fool enough
                writer.write(b" " * 65536)
                await writer.drain()
        else:
            extra = f"cache-control: {self.cache_control}\r\n" if self.cache_control else ""
            writer.write(_http(200, body, extra=extra))
        await writer.drain()


def _http(status: int, body: bytes, kind: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}connection: close\r\n"
    return head.encode() + b"\r\n" + body
