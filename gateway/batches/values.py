"""Files, batches and lines as values, and the statuses that a batch goes through. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, Protocol

from gateway.flow.values import Principal

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
FINAL: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
Purpose = Literal["batch", "batch_output"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a file or a batch belongs to. An API key acts for its service account, whichever key it is."""

    tenant: str
    issuer: str
    subject: str

    @classmethod
    def of(cls, principal: Principal) -> Owner:
        return cls(principal.tenant, principal.issuer, principal.subject)

    @property
    def columns(self) -> dict[str, str]:
        return {"tenant": self.tenant, "issuer": self.issuer, "subject": self.subject}


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    owner: Owner
    purpose: str
    filename: str
    bytes: int
    lines: int
    created_at: datetime
    expires_at: datetime
    batch_id: str | None = None
    """The batch whose results are its content."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot run; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What the request said that made the batch: each line is decided as if it came from there."""

    ip: str | None = None
    user_agent: str | None = None
    data_class: str | None = None
    purpose: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    owner: Owner
    input_file_id: str
    endpoint: str
    status: Status
    created_at: datetime
    expires_at: datetime
    principal: Principal
    origin: Origin = Origin()
    model: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    errors: Sequence[Problem] = ()
    times: Mapping[str, int] = field(default_factory=dict)
    """When it entered a status, in seconds since 1970: `{"in_progress": 1764580000}`."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    keep_s: int = 0
    """How long its results are kept after its end."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One request of an input file that may run."""

    number: int
    custom_id: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class LeasedLine:
    """A line that this node runs, for as long as its lease is renewed."""

    batch: Batch
    number: int
    custom_id: str
    start: int
    size: int
    attempts: int
    """This one included."""


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What the route said to a line."""

    status: int
    request_id: str
    body: bytes = field(repr=False)
    """JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    """Of an error."""


@dataclass(frozen=True, slots=True)
class SealedBytes:
    content: bytes = field(repr=False)
    key_id: str | None = None
    salt: bytes | None = field(default=None, repr=False)


class Sealer(Protocol):
    """Encryption at rest. What is sealed can be opened under the same name only."""

    def seal(self, content: bytes, name: str) -> SealedBytes: ...

    def open(self, sealed: SealedBytes, name: str) -> bytes:
        """Raises `Unavailable` (503 `content_key_missing`, `content_damaged`)."""
        ...


_SETS, _PAIRS, _TIMES = {"roles", "groups", "scopes"}, {"narrowed_models", "owner"}, {"issued_at", "expires_at"}


def principal_to_json(principal: Principal) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for one in fields(Principal):
        value = getattr(principal, one.name)
        if isinstance(value, frozenset):
            value = sorted(value)
        elif isinstance(value, datetime):
            value = value.isoformat()
        document[one.name] = value
    return document


def principal_from_json(document: Mapping[str, Any]) -> Principal:
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name in _SETS:
            value = frozenset(value)
        elif name in _PAIRS and value is not None:
            value = tuple(value)
        elif name in _TIMES and value is not None:
            value = datetime.fromisoformat(value)
        values[name] = value
    return Principal(**values)
