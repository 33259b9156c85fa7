"""Selects the keys of a fetched set that may verify tokens. Every other key is dropped, with a finding that says why.

Owns RFC 7517 in the strict reading: asymmetric signature keys with one clear purpose. Pure: document in, keys out.
Knows no network and no token. ROCA: Nemec et al., CCS 2017 (CVE-2017-15361).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import Algorithm

from gateway.identity.algorithms import SPECS, canonical, implementations
from gateway.identity.token_parser import MAX_KID_CHARS

MAX_KEYS = 64
_PRIVATE_MEMBERS = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_CURVES: dict[str, ec.EllipticCurve] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
_ROCA_PRIMES = (11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157)
_ROCA_RESIDUES = {p: frozenset(pow(65537, i, p) for i in range(p)) for p in _ROCA_PRIMES}
_ALGORITHMS = implementations()


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key (or a development secret) bound to the one algorithm it may be used with."""

    kid: str
    algorithm: str
    key: Any = field(repr=False)
    implementation: Algorithm = field(repr=False)

    def verify(self, signing_input: bytes, signature: bytes) -> bool:
        """True when `signature` is this key's over `signing_input`; False for everything else."""
        return bool(signature) and self.implementation.verify(signing_input, self.key, signature)


@dataclass(frozen=True, slots=True)
class KeyFinding:
    """A key that was not taken. `alert` marks what a healthy provider never publishes."""

    kid: str
    reason: str
    alert: bool = False


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of one provider. `unnamed` ones have no `kid` and count only under `single_key_ok`."""

    named: Mapping[str, VerifyingKey] = field(default_factory=dict)
    unnamed: tuple[VerifyingKey, ...] = ()
    findings: tuple[KeyFinding, ...] = ()
    fingerprint: bytes = b""

    def __len__(self) -> int:
        return len(self.named) + len(self.unnamed)

    @property
    def only(self) -> VerifyingKey | None:
        """The key when there is exactly one."""
        keys = (*self.named.values(), *self.unnamed)
        return keys[0] if len(keys) == 1 else None


class RefusedKey(ValueError):
    def __init__(self, reason: str, *, alert: bool = False) -> None:
        super().__init__(reason)
        self.alert = alert


def secret_key(secret: bytes, algorithm: str) -> VerifyingKey:
    """The key of a `shared_secret` provider. Raises `RefusedKey` when it is shorter than the hash."""
    spec = SPECS[algorithm]
    if spec.kty != "oct" or len(secret) < spec.min_secret_bytes:
        raise RefusedKey(f"{algorithm} needs a secret of at least {spec.min_secret_bytes} bytes")
    return VerifyingKey(kid="", algorithm=algorithm, key=secret, implementation=_ALGORITHMS[algorithm])


def filter_keys(
    document: Mapping[str, Any], *, algorithms: frozenset[str], default_algorithm: str | None, issuer: str | None = None
) -> KeySet:
    """The keys of a JWK set that may verify tokens of `algorithms`.

    `default_algorithm` serves RSA keys without `alg` (Entra publishes such). `issuer` is compared with the
    per-key issuer that Entra adds. Two keys with one `kid` are both dropped, whatever they are. A document that is no
    key set gives an empty `KeySet` with one finding.
    """
    entries = document.get("keys")
    if not isinstance(entries, list):
        return KeySet(findings=(KeyFinding("-", "`keys` is not a list", alert=True),))
    if len(entries) > MAX_KEYS:
        return KeySet(findings=(KeyFinding("-", f"more than {MAX_KEYS} keys", alert=True),))
    counts = Counter(e["kid"] for e in entries if isinstance(e, dict) and isinstance(e.get("kid"), str))
    named: dict[str, VerifyingKey] = {}
    unnamed: list[VerifyingKey] = []
    findings: list[KeyFinding] = []
    for entry in entries:
        kid = entry.get("kid") if isinstance(entry, dict) else None
        label = kid[:64] if isinstance(kid, str) else "-"
        try:
            if isinstance(kid, str) and counts[kid] > 1:
                raise RefusedKey("the kid occurs more than once", alert=True)
            key = load_key(entry, algorithms=algorithms, default_algorithm=default_algorithm, issuer=issuer)
        except RefusedKey as refused:
            findings.append(KeyFinding(label, str(refused), refused.alert))
            continue
        if key.kid:
            named[key.kid] = key
        else:
            unnamed.append(key)
    return KeySet(named, tuple(unnamed), tuple(findings))


def load_key(
    entry: object, *, algorithms: frozenset[str], default_algorithm: str | None, issuer: str | None = None
) -> VerifyingKey:
    """One JWK. Raises `RefusedKey` with the reason."""
    if not isinstance(entry, dict):
        raise RefusedKey("not an object")
    kid = entry.get("kid", "")
    if not isinstance(kid, str) or len(kid) > MAX_KID_CHARS:
        raise RefusedKey("kid is not a short string")
    kty = entry.get("kty")
    if kty not in ("RSA", "EC", "OKP"):
        raise RefusedKey("not an RSA, EC or OKP key", alert=kty == "oct")
    if any(member in entry for member in _PRIVATE_MEMBERS):
        raise RefusedKey("private key material in a public key set", alert=True)
    if entry.get("use", "sig") != "sig":
        raise RefusedKey("use is not sig")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise RefusedKey("key_ops has no verify")
    _check_key_issuer(entry, issuer)
    algorithm = _algorithm(entry, default_algorithm)
    if algorithm not in algorithms:
        raise RefusedKey(f"algorithm {algorithm} is not allowed here")
    spec = SPECS[algorithm]
    if spec.kty != kty or spec.curve != entry.get("crv", spec.curve if kty == "RSA" else None):
        raise RefusedKey("alg does not fit kty and crv", alert=True)
    loaders = {"RSA": _rsa, "EC": _ec, "OKP": _okp}
    return VerifyingKey(kid, canonical(algorithm), loaders[kty](entry), _ALGORITHMS[algorithm])


def _algorithm(entry: Mapping[str, Any], default_algorithm: str | None) -> str:
    """The key's own `alg`, else the only one its curve allows, else what the configuration names for RSA."""
    named = entry.get("alg")
    if named is not None:
        if not isinstance(named, str) or named not in SPECS:
            raise RefusedKey("alg is unknown")
        return named
    if entry["kty"] == "RSA":
        if default_algorithm is None or SPECS[default_algorithm].kty != "RSA":
            raise RefusedKey("the key has no alg and the provider sets no default_key_algorithm")
        return default_algorithm
    for spec in SPECS.values():
        if spec.kty == entry["kty"] and spec.curve == entry.get("crv"):
            return spec.name
    raise RefusedKey("the curve is not supported")


def _check_key_issuer(entry: Mapping[str, Any], issuer: str | None) -> None:
    """Entra marks each key with the issuer it may sign for, `{tenantid}` standing for any directory."""
    marked = entry.get("issuer")
    if marked is None or issuer is None:
        return
    if not isinstance(marked, str):
        raise RefusedKey("issuer of the key is not a string")
    prefix, mark, suffix = marked.partition("{tenantid}")
    fits = issuer.startswith(prefix) and issuer.endswith(suffix) if mark else marked == issuer
    if not fits:
        raise RefusedKey("the key belongs to another issuer")


def _rsa(entry: Mapping[str, Any]) -> rsa.RSAPublicKey:
    n, e = _integer(entry, "n"), _integer(entry, "e")
    if not 2048 <= n.bit_length() <= 8192:
        raise RefusedKey(f"RSA modulus of {n.bit_length()} bits; 2048 to 8192 are accepted", alert=True)
    if e < 65537 or e % 2 == 0 or e.bit_length() > 256:
        raise RefusedKey("RSA exponent is not an odd number from 65537", alert=True)
    if has_roca_fingerprint(n):
        raise RefusedKey("RSA modulus shows the ROCA weakness", alert=True)
    try:
        return rsa.RSAPublicNumbers(e, n).public_key()
    except ValueError:
        raise RefusedKey("not a usable RSA key", alert=True) from None


def _ec(entry: Mapping[str, Any]) -> ec.EllipticCurvePublicKey:
    curve = _CURVES[entry["crv"]]
    size = (curve.key_size + 7) // 8
    x, y = _octets(entry, "x"), _octets(entry, "y")
    if len(x) != size or len(y) != size:
        raise RefusedKey("coordinates have the wrong length for the curve", alert=True)
    try:
        return ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), curve).public_key()
    except ValueError:
        raise RefusedKey("the point is not on the curve", alert=True) from None


def _okp(entry: Mapping[str, Any]) -> ed25519.Ed25519PublicKey:
    x = _octets(entry, "x")
    try:
        return ed25519.Ed25519PublicKey.from_public_bytes(x)
    except ValueError:
        raise RefusedKey("not an Ed25519 key", alert=True) from None


def has_roca_fingerprint(modulus: int) -> bool:
    """True when `modulus` lies in the subgroup of 65537 modulo every marker prime."""
    return all(modulus % p in _ROCA_RESIDUES[p] for p in _ROCA_PRIMES)


def _integer(entry: Mapping[str, Any], name: str) -> int:
    return int.from_bytes(_octets(entry, name))


def _octets(entry: Mapping[str, Any], name: str) -> bytes:
    text = entry.get(name)
    if not isinstance(text, str) or _BASE64URL.fullmatch(text) is None:
        raise RefusedKey(f"{name} is not base64url text", alert=True)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise RefusedKey(f"{name} is not base64url text", alert=True) from None
