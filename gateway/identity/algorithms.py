"""Signature algorithms this gateway knows, and the one key family each of them fits.

The arithmetic is PyJWT's and cryptography's; this table only says which pairs may meet (RFC 7518, RFC 8037, RFC 9864).
`none`, RSASSA with SHA-1, ES256K and every spelling variant are absent, therefore impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

from jwt.algorithms import Algorithm, get_default_algorithms


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    name: str
    kty: str
    curve: str | None = None
    min_secret_bytes: int = 0
    """RFC 7518 section 3.2: an HMAC key is at least as long as the hash."""


_SPECS = (
    AlgorithmSpec("RS256", "RSA"),
    AlgorithmSpec("RS384", "RSA"),
    AlgorithmSpec("RS512", "RSA"),
    AlgorithmSpec("PS256", "RSA"),
    AlgorithmSpec("PS384", "RSA"),
    AlgorithmSpec("PS512", "RSA"),
    AlgorithmSpec("ES256", "EC", "P-256"),
    AlgorithmSpec("ES384", "EC", "P-384"),
    AlgorithmSpec("ES512", "EC", "P-521"),
    AlgorithmSpec("EdDSA", "OKP", "Ed25519"),
    AlgorithmSpec("Ed25519", "OKP", "Ed25519"),
    AlgorithmSpec("HS256", "oct", min_secret_bytes=32),
    AlgorithmSpec("HS384", "oct", min_secret_bytes=48),
    AlgorithmSpec("HS512", "oct", min_secret_bytes=64),
)
SPECS: dict[str, AlgorithmSpec] = {spec.name: spec for spec in _SPECS}
ASYMMETRIC = frozenset(spec.name for spec in _SPECS if spec.kty != "oct")
SYMMETRIC = frozenset(spec.name for spec in _SPECS if spec.kty == "oct")


def implementations() -> dict[str, Algorithm]:
    """Fresh PyJWT algorithm objects for exactly the names of `SPECS`."""
    ours = get_default_algorithms()
    ours["Ed25519"] = ours["EdDSA"]  # RFC 9864 gives the same signature its fully specified name
    return {name: ours[name] for name in SPECS}


def canonical(name: str) -> str:
    """One name per operation, so that `EdDSA` and `Ed25519` match each other and nothing else does."""
    return "EdDSA" if name == "Ed25519" else name
