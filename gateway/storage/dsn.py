"""The database URL as operators write it, for both of its readers: SQLAlchemy's pool and plain connections. Pure.

libpq's parameters (`sslmode`, `sslrootcert`, ...) go to asyncpg, which knows nearly all of them; what it does not know
is dropped where it asks for nothing and refused where it asks for something.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gateway.errors import ConfigError

DRIVER = "postgresql+asyncpg"
_ACCEPTED = {"postgresql", "postgres", DRIVER}
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SSL_ALIASES = {"true": "require", "false": "disable", "1": "require", "0": "disable"}
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_POOL_ONLY = frozenset({"prepared_statement_cache_size"})
_DRIVER_NUMBERS = frozenset({"statement_cache_size", "max_cached_statement_lifetime"})
_ASK_NOTHING: Mapping[str, frozenset[str]] = {
    "channel_binding": frozenset({"prefer", "disable"}),
    "gssencmode": frozenset({"prefer", "disable"}),
    "sslcertmode": frozenset({"allow"}),
    "sslcompression": frozenset({"0", "1"}),  # libpq ignores it too where OpenSSL has no compression
    "sslsni": frozenset({"1"}),
    "keepalives": frozenset({"1"}),
    "load_balance_hosts": frozenset({"disable"}),
}
_IGNORED = frozenset({"connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"})
"""Settings of the gateway's own decide these."""
_REFUSED = frozenset({"sslcrldir", "requirepeer", "require_auth", "requiressl", "ssl_key_passphrase"})


def parse_database_url(text: str) -> URL:
    """A URL with the driver written out and parameters that asyncpg reads; `DATABASE_URL` as any provider shows it.

    Raises `ConfigError` without ever repeating the password.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError(
            "the database URL cannot be read", hint="expected postgresql+asyncpg://user:password@host:5432/database"
        ) from None
    if url.drivername not in _ACCEPTED:
        raise ConfigError(
            f"database driver `{url.drivername}` is not supported",
            hint="use postgresql+asyncpg://user:password@host:5432/database",
        )
    query = {name: value if isinstance(value, str) else ",".join(value) for name, value in url.query.items()}
    return url.set(drivername=DRIVER, query=_parameters(query))


def driver_dsn(url: URL) -> str:
    """The DSN for asyncpg. Holds the password."""
    query = {name: str(value) for name, value in url.query.items() if name not in _POOL_ONLY | _DRIVER_NUMBERS}
    bare = url.set(drivername="postgresql", query={}).render_as_string(hide_password=False)
    return f"{bare}?{urlencode(query)}" if query else bare


def driver_numbers(url: URL) -> dict[str, int]:
    """Arguments of asyncpg that no DSN can carry, for poolers such as pgbouncer."""
    return {name: int(str(url.query[name])) for name in _DRIVER_NUMBERS if name in url.query}


def require_files(url: URL) -> None:
    """Raises `ConfigError` for a certificate or key that is not there, before the first connection fails on it."""
    for name in _FILES:
        path = url.query.get(name)
        if path is not None and not Path(str(path)).is_file():
            raise ConfigError(
                f"`{name}` of the database URL names a file that cannot be read: {path}",
                hint="expected a PEM file that the gateway may read",
            )


def _parameters(query: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for name, value in query.items():
        if name in _REFUSED or (name in _ASK_NOTHING and value not in _ASK_NOTHING[name]):
            raise ConfigError(
                f"the database URL asks for `{name}={value}`, which the driver cannot do",
                hint="remove the parameter; `sslmode=verify-full` with `sslrootcert` proves the server",
            )
        if name in _DRIVER_NUMBERS | _POOL_ONLY and not value.isdigit():
            raise ConfigError(f"`{name}` of the database URL must be a whole number", hint="for example 0")
        if name not in _ASK_NOTHING and name not in _IGNORED:
            kept["sslmode" if name == "ssl" else name] = _SSL_ALIASES.get(value, value) if name == "ssl" else value
    mode = kept.get("sslmode")
    if mode is not None and mode not in _SSL_MODES:
        raise ConfigError(
            f"`sslmode={mode}` of the database URL is unknown", hint=f"expected one of: {', '.join(_SSL_MODES)}"
        )
    if kept.get("sslrootcert") == "system":
        kept["sslrootcert"], kept["sslmode"] = _system_roots(), "verify-full"
    if mode in ("verify-ca", "verify-full") and "sslrootcert" not in kept:
        kept["sslrootcert"] = _system_roots()
    return kept


def _system_roots() -> str:
    places = ssl.get_default_verify_paths()
    found = places.cafile or (places.openssl_cafile if Path(places.openssl_cafile).is_file() else None)
    if found is None:
        raise ConfigError(
            "this system has no file of certificate authorities", hint="name one with `sslrootcert=/path/ca.pem`"
        )
    return found
