"""The policy document as typed, frozen values: shape and single-field rules only.

Knows nothing of the catalog, of evaluation or of references between parts; the compiler checks those.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gateway.access.document.fields import (
    MAX_ENTRIES,
    SECONDS,
    ClockTime,
    Count,
    Days,
    Instant,
    Many,
    ModelPattern,
    Name,
    Network,
    PrincipalName,
    Text,
    Window,
    Word,
    Zone,
)
from gateway.access.document.vocabulary import (
    AnyAction,
    CachedTokens,
    ContentLogging,
    DataClass,
    Guardrails,
    PrefixCache,
    PrincipalType,
    Redaction,
    RepetitionGuard,
    Tools,
)

MAX_RULES = 5000


class Part(BaseModel):
    """Base of every object of a document. What is far too long is refused before it is looked at, and other threads may
    run between two objects."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for inner in (value, *value.values()):
                if isinstance(inner, dict | tuple | list) and len(inner) > MAX_ENTRIES:
                    raise PydanticCustomError("too_many", "expected at most {most} entries", {"most": MAX_ENTRIES})
        return value


class Metadata(Part):
    """The last four are set by the server when a document is read, and ignored when one is written."""

    name: Name
    description: Text = ""
    version: int | None = None
    etag: Word | None = None
    author: Word | None = None
    created_at: Word | None = None


SET_BY_SERVER = ("version", "etag", "author", "createdAt")


class Flags(Part):
    hide_models: bool = False
    """A model that is not permitted looks like one that does not exist (404 instead of 403)."""
    default_data_class: DataClass = "internal"
    """Class of a request that states none."""
    default_department: Word | None = None
    """The department charged where neither token nor role names one, or the token names one that is not declared."""
    require_department: bool = False
    """Refuse model use to callers whom no (declared) department is charged for."""


class RoleMapping(Part):
    """Verified claim values to roles. The claim paths themselves are configured at the identity provider."""

    provider: Word
    claim: Literal["roles", "groups", "scopes"]
    equals: Word
    roles: Many[Name] = Field(min_length=1)


class Role(Part):
    description: Text = ""
    inherits: Many[Name] = ()
    department: Word | None = None
    """Department that is charged when the holder's token names none."""


class RoleBinding(Part):
    """Roles given by name rather than by claim. `breakGlass` marks an emergency grant and needs `expires`."""

    id: Name
    roles: Many[Name] = Field(min_length=1)
    principals: Many[PrincipalName] = Field(min_length=1)
    expires: Instant | None = None
    break_glass: bool = False
    reason: Text = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.break_glass and self.expires is None:
            raise ValueError("a break-glass binding needs `expires`")
        return self


class Subjects(Part):
    """Who: any of `roles` and `principals` (or `any: true`), and then every filter that is written.

    `departments` or `tenants` alone stand for everybody in them: `departments: [finance]` is all of finance.
    Groups of an identity provider become roles through `roleMappings`, which name their provider.
    """

    any: bool = False
    roles: Many[Name] = ()
    principals: Many[PrincipalName] = ()
    types: Many[PrincipalType] | None = Field(None, min_length=1)
    departments: Many[Word] | None = Field(None, min_length=1)
    tenants: Many[Word] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        named = bool(self.roles or self.principals)
        if named and self.any:
            raise ValueError("expected either `roles` or `principals`, or `any: true`")
        if not (named or self.any or self.departments or self.tenants):
            raise ValueError("expected `roles`, `principals`, `departments`, `tenants`, or `any: true`")
        return self

    @property
    def everybody(self) -> bool:
        """No role and no name is asked for, filters aside."""
        return not (self.roles or self.principals)


class Models(Part):
    """Which: any of `ids`, `groups` (or `any: true`), and then every label; labels alone select the whole catalog."""

    any: bool = False
    ids: Many[ModelPattern] = ()
    groups: Many[Name] = ()
    labels: dict[Word, Word] = Field(default_factory=dict, max_length=256)

    @model_validator(mode="after")
    def _something(self) -> Self:
        named = bool(self.ids or self.groups)
        if named and self.any:
            raise ValueError("expected either `ids` or `groups`, or `any: true`, not both")
        if not (named or self.any or self.labels):
            raise ValueError("expected `ids`, `groups`, `labels` or `any: true`")
        return self


class DataClassTest(Part):
    min: DataClass | None = None
    max: DataClass | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("expected `min` or `max`")
        return self


class PurposeTest(Part):
    one_of: Many[Word] = Field((), alias="in")
    none_of: Many[Word] = Field((), alias="notIn")

    @model_validator(mode="after")
    def _listed(self) -> Self:
        if bool(self.one_of) == bool(self.none_of):
            raise ValueError("expected either `in` or `notIn`, with at least one purpose")
        return self


class TimeTest(Part):
    """A daily window on the wall clock of `tz`; `from` after `to` runs past midnight and belongs to its first day."""

    tz: Zone
    days: Many[Days] = Field(("mon-sun",), min_length=1)
    start: ClockTime = Field("00:00", alias="from")
    end: ClockTime = Field("24:00", alias="to")

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.start == self.end or self.start == "24:00":
            raise ValueError(
                f"`from: {self.start}` and `to: {self.end}` leave no time; leave both out for the whole day"
            )
        return self


class When(Part):
    """All that are written must hold."""

    data_class: DataClassTest | None = None
    purpose: PurposeTest | None = None
    time: TimeTest | None = None
    source_cidr: Many[Network] | None = Field(None, min_length=1)
    clients: Many[Word] | None = Field(None, min_length=1)


class ObligationSpec(Part):
    max_output_tokens: Annotated[int, Field(ge=1, le=10**7)] | None = None
    default_output_tokens: Annotated[int, Field(ge=1, le=10**7)] | None = None
    """Of an answer whose caller names no length."""
    repetition_guard: RepetitionGuard | None = None
    guardrails: Guardrails | None = None
    redaction: Redaction | None = None
    content_logging: ContentLogging | None = None
    require_locality: Word | None = None
    prefix_cache: PrefixCache | None = None
    cached_tokens: CachedTokens | None = None
    tools: Tools | None = None
    response_store_days: Annotated[int, Field(ge=0, le=3650)] | None = None
    """0 keeps nothing."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """Lower runs first."""
    share_weight: Annotated[float, Field(gt=0, le=1000)] | None = None


class Rule(Part):
    id: Name
    effect: Literal["allow", "deny"]
    description: Text = ""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=300)] | None = None
    """Public sentence shown to a caller whom this rule refuses."""
    subjects: Subjects
    actions: Many[AnyAction] | None = Field(None, min_length=1)
    """Only a deny rule may leave it out: it then covers every action on its models."""
    models: Models | None = None
    when: When | None = None
    obligations: ObligationSpec | None = None


SCOPE_FIELDS = ("user", "department", "role", "tenant", "purpose", "model")


class LimitScope(Part):
    """`each` makes one counter per value, and the other fields narrow whom it applies to.

    Without `each` the fields together name the one counter: `{department: finance, model: m, purpose: p}`. There is no
    `each: purpose`: a purpose is what the caller says, and every new word would be a new budget.
    """

    each: Literal["user", "key", "department", "role", "tenant", "model"] | None = None
    user: PrincipalName | None = None
    department: Word | None = None
    role: Name | None = None
    tenant: Word | None = None
    model: ModelPattern | None = None
    purpose: Word | None = None

    @model_validator(mode="after")
    def _counted(self) -> Self:
        named = [name for name in SCOPE_FIELDS if getattr(self, name) is not None]
        if self.each is None and not named:
            raise ValueError(f"expected `each`, or some of {', '.join(f'`{name}`' for name in SCOPE_FIELDS)}")
        if self.each in named:
            raise ValueError(f"`each: {self.each}` and `{self.each}` are both written; expected one of them")
        return self


COUNTS = ("requests", "tokens", "tokens_in", "tokens_out", "concurrent")
"""The fields of a `Limit` that are plain counts; money is written in a currency and compiled to `cost_micro`."""


class Limit(Part):
    id: Name
    description: Text = ""
    scope: LimitScope
    window: Window = "minute"
    tz: Zone = "UTC"
    requests: Count | None = None
    tokens: Count | None = None
    tokens_in: Count | None = None
    tokens_out: Count | None = None
    concurrent: Count | None = None
    cost: Annotated[float, Field(ge=0, le=10**12)] | None = None
    currency: Annotated[str, StringConstraints(max_length=3, pattern=r"^[A-Z]{3}$")] = "EUR"
    cost_eur: Annotated[float, Field(ge=0, le=10**12)] | None = Field(None, alias="cost_eur")
    """Short for `cost` with `currency: EUR`."""
    on_exceed: Literal["deny"] = "deny"
    warn_at: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((), max_length=16)
    on_store_error: Literal["deny", "local", "allow"] = "local"
    sliding: bool = False
    """Weigh the previous window in; for windows of minutes and seconds."""

    @model_validator(mode="after")
    def _quantity(self) -> Self:
        if all(getattr(self, name) is None for name in (*COUNTS, "cost", "cost_eur")):
            raise ValueError("limits nothing; expected `requests`, `tokens`, `concurrent` or `cost`")
        if self.cost_eur is not None and (self.cost is not None or self.currency != "EUR"):
            raise ValueError("`cost_eur` cannot stand beside `cost` or another currency")
        if self.sliding and self.window in {"day", "month"}:
            raise ValueError("`sliding` is for windows of minutes and seconds; a day and a month follow the calendar")
        return self

    @property
    def seconds(self) -> int | None:
        match = SECONDS.match(self.window)
        return int(match.group(1)) if match else None


class Given(Part):
    """The situation of an embedded test; whatever is left out is absent from the request too."""

    tenant: Word = "default"
    issuer: Word = "https://idp.test"
    subject: Word = "test-subject"
    provider: Word | None = None
    type: PrincipalType = "user"
    roles: Many[Name] = ()
    groups: Many[Word] = ()
    scopes: Many[Word] = ()
    department: Word | None = None
    clearance: Word | None = None
    client: Word | None = None
    action: AnyAction
    model: Word | None = None
    data_class: Word | None = None
    purpose: Word | None = None
    at: Instant | None = None
    source: Word | None = None


class PolicyTest(Part):
    name: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    given: Given
    expect: Literal["allow", "deny"]
    rule: Word | None = None
    """Id of the rule that must decide."""
    obligations: ObligationSpec | None = None
    """Those written must come out exactly so."""


class PolicySet(Part):
    api_version: Literal["esclusa/v1"]
    kind: Literal["PolicySet"]
    metadata: Metadata
    settings: Flags = Flags()
    role_mappings: Many[RoleMapping] = ()
    role_bindings: Many[RoleBinding] = ()
    departments: Many[Word] = ()
    """All there are. With this list, one that a rule or limit misspells is an error."""
    roles: dict[Name, Role] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    model_groups: dict[Name, Many[ModelPattern]] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    rules: tuple[Rule, ...] = Field(max_length=MAX_RULES)
    limits: tuple[Limit, ...] = Field((), max_length=1000)
    tests: tuple[PolicyTest, ...] = Field((), max_length=MAX_RULES)

    def to_data(self) -> dict[str, Any]:
        """The document as JSON-ready data, without defaults and without what the server sets."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for name in SET_BY_SERVER:
            data["metadata"].pop(name, None)
        return data

    def sha256(self) -> str:
        """Hash of the meaning: comments, layout and the order of keys do not count."""
        canonical = json.dumps(self.to_data(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()
