"""Readiness of each part of the gateway, for `/readyz` and metrics. Reads states; does no I/O.

To add a part, write a function that returns a `Part` and name it in `read_parts`. States are closed words of ours,
because strangers read them; `serves=False` takes this replica out of load balancing.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.access.history.service import AccessService
from gateway.api.health import Part
from gateway.audit.service import AuditService
from gateway.descriptors import DescriptorPlan
from gateway.flow.ports import Backend
from gateway.identity.service import IdentityService
from gateway.limits.service import LimitService
from gateway.routing.catalog import LOCAL_BACKEND
from gateway.storage.postgres_watch import PostgresWatch

SPOOL_FILLS = 0.5
"""Share of the quota from which the spool is said to fill: Postgres does not take the records."""


def read_parts(
    audit: AuditService,
    access: AccessService,
    identity: IdentityService,
    limits: LimitService,
    backends: Mapping[str, Backend],
    postgres: PostgresWatch,
    descriptors: DescriptorPlan,
    batches: str,
) -> tuple[Part, ...]:
    policy = access.status().state
    kept = audit.status()
    local = backends.get(LOCAL_BACKEND)
    return (
        Part("audit", "ready" if audit.healthy else "refusing", serves=audit.healthy),
        _spool(kept, healthy=audit.healthy),
        _quarantine(kept),
        _postgres(kept, postgres),
        Part("policy", policy, serves=policy != "unavailable"),
        Part("identity", identity.state, serves=identity.ready),
        Part("limits", "degraded" if limits.degraded else "ready"),
        Part("descriptors", "lowered" if descriptors.lowered else "ready"),
        Part("batches", batches),
        *(() if local is None else (_engine(local.status()),)),
    )


def _spool(kept: Mapping[str, object], *, healthy: bool) -> Part:
    used, quota = (float(str(kept.get(name) or 0)) for name in ("spool_bytes", "spool_quota_bytes"))
    fills = quota > 0 and used / quota > SPOOL_FILLS
    return Part("spool", "refusing" if not healthy else "filling" if fills else "ready", serves=healthy)


def _quarantine(kept: Mapping[str, object]) -> Part:
    """Records or files that could not be read or stored are kept aside for people to look at."""
    aside = any(kept.get(name) for name in ("quarantined", "quarantined_files", "lost_records"))
    return Part("quarantine", "holds_records" if aside else "empty")


def _postgres(kept: Mapping[str, object], postgres: PostgresWatch) -> Part:
    """Requests go on without it for a while, so that it alone makes no replica unready."""
    if postgres.state == "ready" and kept.get("postgres", "ok") != "ok":
        return Part("postgres", "takes_no_records")
    if postgres.state == "ready" and kept.get("housekeeping_fails"):
        return Part("postgres", "housekeeping_fails")
    return Part("postgres", postgres.state)


def _engine(engine_status: Mapping[str, object]) -> Part:
    state = str(engine_status["state"])
    serves = state in ("ready", "degraded")
    if serves:
        return Part("engine", state)
    return Part(
        "engine", state, serves=False, stage=str(engine_status["stage"]), percent=float(str(engine_status["percent"]))
    )


def policy_state(access: AccessService) -> Mapping[str, object]:
    """For metrics: a replica that serves an old policy must be seen before it has to stop."""
    status = access.status()
    return {"state": status.state, "version": status.version, "age_s": status.age_s}
