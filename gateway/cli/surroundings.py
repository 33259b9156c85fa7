"""The checks of `esclusa doctor` on what surrounds the gateway: spool, clock, descriptors, proxies, metrics.

Settings in, finding out, as in `gateway.cli.checks`. No printing here.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import tempfile
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from gateway.cli.checks import Finding
from gateway.errors import ConfigError
from gateway.settings import Settings

SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0
"""Tokens are judged with `leeway_s` (30 s by default), and records lie in the partition of their month."""
GIB = 1024**3


def check_spool(settings: Settings) -> Finding:
    from gateway.audit.quarantine import survey
    from gateway.places import spool_dir

    place = spool_dir(settings)
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    problem = _write_problem(existing, made=existing == place)
    if problem is not None:
        return Finding(
            "spool", "fail", f"{existing}: {problem}", "a folder that the gateway may write to",
            "set `audit.spool_dir`, or `chown` the folder to the user that runs the gateway",
        )  # fmt: skip
    kept = survey(place)
    if kept.files or kept.damages:
        return Finding(
            "spool", "warn", f"{kept.files} damaged file(s) are kept aside, {kept.lost_records} record(s) are lost",
            "no damaged file", f"see {place / 'quarantine'} and docs/concepts/audit.md, then move the files away",
        )  # fmt: skip
    free, quota = shutil.disk_usage(existing).free, settings.audit.spool_quota_bytes
    used = sum(file.stat().st_size for file in place.rglob("*.log")) if existing == place else 0
    if free < quota - used:
        return Finding(
            "spool", "warn", f"{free / GIB:.1f} GiB free at {place}",
            f"{(quota - used) / GIB:.1f} GiB more, so that `audit.spool_quota_bytes` fits",
            "free space, move the spool, or lower the quota: requests are refused when the disk is full",
        )  # fmt: skip
    return Finding("spool", "ok", f"{place} can be written, {used >> 20} MiB wait, {free / GIB:.1f} GiB free")


def _write_problem(folder: Path, *, made: bool) -> str | None:
    if not folder.is_dir():
        return "is no folder"
    try:
        if not made:  # it would be created below this one
            with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-"):
                return None
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            return None
    except OSError as error:
        return error.strerror or "cannot be written"


def check_clock(settings: Settings) -> Finding:
    if settings.store.database_url is None:
        return Finding("clock", "ok", "a private Postgres has the clock of this machine")
    from gateway.storage.postgres import CONNECTION_FAILURES

    url = settings.store.database_url.get_secret_value()
    try:
        skew = asyncio.run(_skew(url))
    except (ConfigError, *CONNECTION_FAILURES):
        return Finding(
            "clock", "warn", "not compared: Postgres does not answer", "an answer", "see the line on postgres"
        )
    message = f"Postgres is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) < SKEW_WARN_S:
        return Finding("clock", "ok", message)
    state: Literal["warn", "fail"] = "fail" if abs(skew) > SKEW_FAIL_S else "warn"
    wanted = f"less than {SKEW_WARN_S:.0f} s: tokens and budgets end by the clock, records lie in its month"
    return Finding("clock", state, message, wanted, "run NTP (chrony) on both machines")


async def _skew(url: str) -> float:
    from gateway.storage.postgres import connect_raw
    from gateway.storage.postgres_watch import measure_skew

    async with asyncio.timeout(5):
        connection = await connect_raw(url, timeout_s=3, application_name="esclusa-doctor")
        try:
            return await measure_skew(connection)
        finally:
            connection.terminate()


def check_descriptors(settings: Settings) -> Finding:
    from gateway.descriptors import ENOUGH
    from gateway.server import plan_for

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    plan = plan_for(settings, ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH))
    if plan.lowered:
        return Finding(
            "descriptors", "warn", str(plan), f"a hard limit of {plan.needed} open files or more",
            "`LimitNOFILE=` in systemd, `ulimits:` in compose, `ulimit -Hn` in a shell; or lower "
            "`http.max_connections` and `http.max_concurrent_requests`",
        )  # fmt: skip
    return Finding("descriptors", "ok", str(plan))


def check_proxies(settings: Settings) -> Finding:
    trusted = settings.http.trusted_proxies
    if trusted:
        shown = ", ".join(map(str, trusted))
        if any(network.prefixlen == 0 for network in trusted):
            return Finding(
                "proxies", "warn", f"everybody is trusted ({shown}): callers choose their own address",
                "the addresses of your reverse proxies only", "narrow `http.trusted_proxies`",
            )  # fmt: skip
        return Finding("proxies", "ok", f"X-Forwarded-For is believed from {shown}")
    if _uses_source(settings):
        return Finding(
            "proxies", "warn", "no proxy is trusted, and the policy file judges source addresses (`sourceCidr`)",
            "`http.trusted_proxies`, if callers come through a reverse proxy: else the proxy's address is judged",
            "docs/guides/deployment.md, section on reverse proxies",
        )  # fmt: skip
    return Finding("proxies", "ok", "none is trusted: the address of a connection is the caller's")


def _uses_source(settings: Settings) -> bool:
    from gateway.places import default_policy

    try:
        path = settings.access.policy_file or default_policy()
        return "sourceCidr" in path.read_text(encoding="utf-8")
    except (ConfigError, OSError, UnicodeDecodeError):
        return False  # told by the line on policy


def check_metrics(settings: Settings) -> Finding:
    http = settings.http
    if http.metrics_port is None:
        return Finding("metrics", "ok", "turned off")
    where = f"/metrics at {http.metrics_host}:{http.metrics_port}"
    try:
        private = http.metrics_host == "localhost" or ip_address(http.metrics_host).is_loopback
    except ValueError:
        private = False
    if private:
        return Finding("metrics", "ok", f"{where}, for this machine only")
    return Finding(
        "metrics", "warn", f"{where} is open to whoever reaches that address, without a credential",
        "loopback, or an internal network whose firewall lets only Prometheus in",
        "set `http.metrics_host`, or keep it and close the port to others",
    )  # fmt: skip


SURROUNDINGS: dict[str, Callable[[Settings], Finding]] = {
    "spool": check_spool,
    "clock": check_clock,
    "descriptors": check_descriptors,
    "proxies": check_proxies,
    "metrics": check_metrics,
}
