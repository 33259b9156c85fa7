"""The development issuer of local mode: one key pair in the data folder, tokens signed with it, its key set as a file.

Owns the key's life (made once, mode 0600, never sent anywhere) and the shape of local tokens (RFC 9068). A gateway
trusts it only when local mode adds `provider_settings()` to its providers; nothing else refers to it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jwt.algorithms import RSAAlgorithm
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.errors import ConfigError
from gateway.flow.context import Clock, IdSource, SystemClock, SystemIds
from gateway.local.secret_file import made_once, require_private, write_once
from gateway.settings import ProviderSettings

LOCAL_ISSUER = "http://127.0.0.1/local-issuer"
"""Constant, whatever the port: tokens outlive restarts. Nothing is ever fetched from it."""
LOCAL_AUDIENCE = "esclusa"
LOCAL_CLIENT = "esclusa-cli"
PROVIDER_NAME = "local"
MAX_TTL_S = 86_400
CLEARANCES = ("public", "internal", "confidential", "restricted")
_FOLDER, _KEY, _JWKS = "issuer", "key.pem", "jwks.json"
_PEPPER, _CONTENT_KEYS = "api-key-pepper", "content-keys"


class DevIssuer:
    """Mints local tokens. `DevIssuer.open(data_dir)` makes the key on first use and reads it ever after."""

    def __init__(
        self,
        folder: Path,
        key: rsa.RSAPrivateKey,
        *,
        issuer: str = LOCAL_ISSUER,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self.issuer = issuer
        self._folder = folder
        self._key = key
        self._clock = clock if clock is not None else SystemClock()
        self._ids = ids if ids is not None else SystemIds()
        self._jwk = _public_jwk(key)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        issuer: str = LOCAL_ISSUER,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> DevIssuer:
        """Blocking (file I/O; making an RSA key takes up to a second, once per installation).

        Raises `ConfigError` when the key cannot be read, is damaged, or is readable by others.
        """
        folder = data_dir / _FOLDER
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = _read_key(folder / _KEY) if (folder / _KEY).exists() else _make_key(folder / _KEY)
            found = cls(folder, key, issuer=issuer, clock=clock, ids=ids)
            write_once(folder / _JWKS, json.dumps(found.jwks(), indent=2).encode(), 0o644, replace=True)
        except OSError as error:
            raise ConfigError(
                f"the local issuer's key cannot be used: {error.strerror}",
                file=str(folder),
                hint="set ESCLUSA_LOCAL__DATA_DIR to a folder that this user may write",
            ) from None
        return found

    def jwks(self) -> dict[str, Any]:
        """The public key set."""
        return {"keys": [self._jwk]}

    def provider_settings(self) -> ProviderSettings:
        """The provider that local mode adds to `identity.providers`; the keys come from the file, without HTTP."""
        return ProviderSettings(
            name=PROVIDER_NAME,
            type="rfc9068",
            issuer=self.issuer,
            audiences=(LOCAL_AUDIENCE,),
            algorithms=("RS256",),
            jwks_file=self._folder / _JWKS,
            discovery=False,
            allow_http=True,
            roles_claim="roles",
            groups_claim=None,
            scopes_claim=None,
            tenant_claim="tenant",
            department_claim="department",
            clearance_claim="clearance",
            allowed_clients=(LOCAL_CLIENT,),
            max_lifetime_s=MAX_TTL_S,
        )

    def mint(
        self,
        subject: str,
        roles: Iterable[str],
        department: str | None = None,
        tenant: str = "default",
        ttl_s: int = 3600,
        clearance: str | None = None,
    ) -> str:
        """A signed access token for `subject`, valid `ttl_s` seconds (1 to 86,400). Raises `ConfigError`."""
        names = list(roles)
        for what, value in (("--sub", subject), ("--tenant", tenant), *(("--role", name) for name in names)):
            if not value.strip() or len(value) > 256 or not value.isprintable():
                raise ConfigError(f"{what} must be a printable text of 1 to 256 characters")
        if not 1 <= ttl_s <= MAX_TTL_S:
            raise ConfigError(f"--ttl is {ttl_s} seconds; expected 1 to {MAX_TTL_S}")
        if clearance is not None and clearance not in CLEARANCES:
            raise ConfigError(f"--clearance is `{clearance}`; expected one of {', '.join(CLEARANCES)}")
        now = int(self._clock.now().timestamp())
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": LOCAL_AUDIENCE,
            "sub": subject,
            "client_id": LOCAL_CLIENT,
            "iat": now,
            "exp": now + ttl_s,
            "jti": str(self._ids.uuid7()),
            "tenant": tenant,
            "roles": names,
        }
        claims |= {"department": department} if department is not None else {}
        claims |= {"clearance": clearance} if clearance is not None else {}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self._jwk["kid"], "typ": "at+jwt"})


def api_key_pepper(data_dir: Path) -> str:
    """The secret under which this installation hashes API keys: random, made once, mode 0600. Blocking."""
    return made_once(data_dir / _FOLDER / _PEPPER, lambda: secrets.token_urlsafe(48))


def content_keys(data_dir: Path) -> str:
    """The key under which this installation encrypts prompts and answers, as `audit.content_keys`. Blocking."""
    return made_once(
        data_dir / _FOLDER / _CONTENT_KEYS, lambda: f"local-1:{base64.b64encode(secrets.token_bytes(32)).decode()}"
    )


def issuer_routes(issuer: DevIssuer, *, base_path: str = "/local-issuer") -> list[BaseRoute]:
    """Discovery and key set for other tools on this machine. To be mounted in local mode only; both are public."""

    async def discovery(request: Request) -> Response:
        root = f"{request.url.scheme}://{request.url.netloc}{base_path}"
        return JSONResponse(
            {
                "issuer": issuer.issuer,
                "jwks_uri": f"{root}/jwks",
                "response_types_supported": ["token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def key_set(_: Request) -> Response:
        return JSONResponse(issuer.jwks(), headers={"cache-control": "max-age=300"})

    return [
        Route(f"{base_path}/.well-known/openid-configuration", discovery, methods=["GET"]),
        Route(f"{base_path}/jwks", key_set, methods=["GET"]),
    ]


def _public_jwk(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    """With the RFC 7638 thumbprint as `kid`, so that a new key always has a new name."""
    jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    required = json.dumps({name: jwk[name] for name in ("e", "kty", "n")}, separators=(",", ":"), sort_keys=True)
    thumbprint = base64.urlsafe_b64encode(hashlib.sha256(required.encode()).digest()).rstrip(b"=").decode()
    return {"kty": jwk["kty"], "n": jwk["n"], "e": jwk["e"], "kid": thumbprint, "use": "sig", "alg": "RS256"}


def _read_key(path: Path) -> rsa.RSAPrivateKey:
    require_private(path)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigError(
            "the local issuer's key is damaged",
            file=str(path),
            hint="delete it; a new one is made (tokens already minted stop working)",
        )
    return key


def _make_key(path: Path) -> rsa.RSAPrivateKey:
    """Two processes may start at once: the first to link its file wins, and both use that one."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key if write_once(path, pem, 0o600, replace=False) else _read_key(path)
