"""The rights of a database role that runs the gateway and owns nothing. Pure.

The trail may be read and appended to. What an owner alone may do (partitions, removing old months) are functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import ConfigError

_CHANGED = (
    "policy_version",
    "policy_head",
    "policy_proposal",
    "identity_service_account",
    "identity_api_key",
    "identity_revocation",
    "idempotent_request",
    "stored_file",
    "stored_chunk",
    "batch",
    "batch_line",
    "stored_conversation",
    "stored_response",
)


def grant_statements(role: str, *, erasure: bool = False, retention: bool = False) -> Iterator[str]:
    """SQL without the closing semicolons, to be run by the owner after each upgrade. Raises `ConfigError`."""
    if not role or "\x00" in role or len(role.encode()) > 63:
        raise ConfigError("this is no name of a role", hint="1 to 63 bytes")
    name = '"' + role.replace('"', '""') + '"'
    yield f"GRANT SELECT ON alembic_version TO {name}"
    yield f"GRANT SELECT, INSERT ON audit_event, audit_quarantine TO {name}"
    yield f"GRANT SELECT ON audit_event_default TO {name}"
    yield f"GRANT SELECT, INSERT, DELETE ON audit_content TO {name}"
    yield f"GRANT EXECUTE ON FUNCTION audit_ensure_partitions(integer, timestamptz) TO {name}"
    yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(_CHANGED)} TO {name}"
    yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}"
    if erasure:
        yield f"GRANT UPDATE (subject, personal, personal_salt) ON audit_event TO {name}"
        yield f"GRANT UPDATE (side) ON audit_quarantine TO {name}"
    if retention:
        yield f"GRANT EXECUTE ON FUNCTION audit_drop_expired(text, timestamptz) TO {name}"
