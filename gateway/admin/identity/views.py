"""Bodies and answers of the identity resources: service accounts, API keys, revocations. Shapes only, no behavior."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field

from gateway.admin.bodies import AdminBody, Page
from gateway.identity.accounts import IssuedKey
from gateway.identity.api_keys import ApiKeyRecord, ServiceAccount, effective_models, effective_roles
from gateway.identity.revocations import Revocation

MAX_DAYS = 365

Name = Annotated[
    str,
    Field(max_length=63, pattern=r"^[a-z0-9][a-z0-9._-]{1,62}$", description="lower-case letters, digits, . _ -"),
]
Role = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^\S(.*\S)?$")]
Model = Annotated[str, Field(min_length=1, max_length=256)]
Roles = Annotated[list[Role], Field(max_length=32, fail_fast=True)]
Models = Annotated[list[Model], Field(max_length=64, fail_fast=True)]
Clearance = Literal["public", "internal", "confidential", "restricted"]
Days = Annotated[int, Field(strict=True, ge=1, le=MAX_DAYS)]
Label = Annotated[str, Field(min_length=1, max_length=512)]


class NewAccount(AdminBody):
    """The caller becomes the owner, which nothing can change; tenant and department are the caller's."""

    name: Name
    roles: Roles = Field(description="a subset of the caller's own")
    models: Models | None = Field(None, description="only these; null: what the roles allow")
    clearance: Clearance | None = Field(None, description="at most the caller's own")


class AccountPatch(AdminBody):
    """Only the fields that are sent are changed."""

    roles: Roles | None = None
    models: Models | None = None
    clearance: Clearance | None = None
    disabled: bool | None = Field(None, strict=True)


class NewKeyBody(AdminBody):
    name: Name
    roles: Roles | None = Field(None, description="a subset of the account's; null: all of them")
    models: Models | None = Field(None, description="only these; null: what the account may use")
    expires_in_days: Days = 90


class RotateBody(AdminBody):
    expires_in_days: Days = 90
    overlap_seconds: int = Field(86_400, strict=True, ge=0, le=30 * 86_400, description="how long the old key stays")


class NewRevocation(AdminBody):
    """`credential`: issuer and credential_id (a token's `jti`, or a key's id). `subject`: issuer and subject.
    `issued_before`: every token older than that moment (default now) of a subject, an issuer, or the tenant."""

    kind: Literal["credential", "subject", "issued_before"]
    issuer: Label | None = None
    subject: Label | None = None
    credential_id: Label | None = None
    issued_before: AwareDatetime | None = None
    reason: str = Field(min_length=3, max_length=500, description="why; goes into the audit record")


class Owner(BaseModel):
    issuer: str
    subject: str


class AccountView(BaseModel):
    object: Literal["service_account"] = "service_account"
    id: str
    name: str
    tenant: str
    owner: Owner
    roles: list[str]
    models: list[str] | None
    department: str | None
    clearance: str | None
    disabled: bool
    version: int
    created_at: datetime


class AccountPage(Page):
    data: list[AccountView]


class KeyView(BaseModel):
    """Never the hash: nothing that helps to guess a key leaves the database."""

    object: Literal["api_key"] = "api_key"
    id: str
    account_id: str
    name: str
    roles: list[str]
    models: list[str] | None
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


class KeyPage(Page):
    data: list[KeyView]


class IssuedKeyView(KeyView):
    key: str | None = Field(description="the key itself, in this answer only; null in the replay of a request")
    replayed: bool = False


class RotatedKeyView(IssuedKeyView):
    replaces: KeyView


class RevocationView(BaseModel):
    object: Literal["revocation"] = "revocation"
    id: str
    kind: str
    tenant: str
    issuer: str | None
    subject: str | None
    credential_id: str | None
    issued_before: datetime | None
    reason: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    lifted_at: datetime | None


class RevocationPage(Page):
    data: list[RevocationView]


def account_view(account: ServiceAccount) -> AccountView:
    return AccountView(
        id=account.id,
        name=account.name,
        tenant=account.tenant,
        owner=Owner(issuer=account.owner_issuer, subject=account.owner_subject),
        roles=sorted(account.roles),
        models=None if account.models is None else list(account.models),
        department=account.department,
        clearance=account.clearance,
        disabled=account.disabled,
        version=account.version,
        created_at=account.created_at,
    )


def key_view(record: ApiKeyRecord) -> KeyView:
    models = effective_models(record)
    return KeyView(
        id=record.key_id,
        account_id=record.account.id,
        name=record.name,
        roles=sorted(effective_roles(record)),
        models=None if models is None else list(models),
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
        replaced_by=record.replaced_by,
    )


def issued_view(issued: IssuedKey) -> IssuedKeyView:
    return IssuedKeyView(**key_view(issued.record).model_dump(), key=issued.text, replayed=issued.text is None)


def revocation_view(entry: Revocation) -> RevocationView:
    return RevocationView(**{name: getattr(entry, name) for name in RevocationView.model_fields if name != "object"})
