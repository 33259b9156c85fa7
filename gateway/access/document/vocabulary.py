"""The closed word lists of a policy: actions, data classes and the order of strictness. Knows no document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

InferenceAction = Literal["chat", "completions", "embeddings", "moderations"]
AdminAction = Literal[
    "audit.read",
    "content.read",
    "policy.read",
    "policy.write",
    "policy.approve",
    "identity.read",
    "identity.write",
    "limits.read",
    "limits.write",
    "models.read",
    "engine.operate",
    "tenants.all",
]
ServiceAction = Literal["batches.use"]
AnyAction = Literal[InferenceAction, AdminAction, ServiceAction]
DataClass = Literal["public", "internal", "confidential", "restricted"]
PrincipalType = Literal["user", "service"]
Redaction = Literal["off", "flag", "redact", "block"]
Guardrails = Literal["off", "default", "strict"]
ContentLogging = Literal["none", "hash", "redacted", "encrypted"]
PrefixCache = Literal["tenant", "department", "user"]
CachedTokens = Literal["show", "hide"]
RepetitionGuard = Literal["off", "stop"]
REPETITION_GUARD_ORDER: tuple[RepetitionGuard, ...] = get_args(RepetitionGuard)
Tools = Literal["allowed", "denied"]

INFERENCE_ACTIONS: tuple[str, ...] = get_args(InferenceAction)
ADMIN_ACTIONS: tuple[str, ...] = get_args(AdminAction)
SERVICE_ACTIONS: tuple[str, ...] = get_args(ServiceAction)
"""Neither about a model nor administration: whoever changes the policy may grant them without holding them."""
DATA_CLASSES: tuple[str, ...] = get_args(DataClass)
REDACTION_ORDER: tuple[Redaction, ...] = get_args(Redaction)
GUARDRAIL_ORDER: tuple[Guardrails, ...] = get_args(Guardrails)
LOGGING_ORDER: tuple[ContentLogging, ...] = get_args(ContentLogging)
PREFIX_CACHE_ORDER: tuple[PrefixCache, ...] = get_args(PrefixCache)
CACHED_TOKENS_ORDER: tuple[CachedTokens, ...] = get_args(CachedTokens)
TOOLS_ORDER: tuple[Tools, ...] = get_args(Tools)

SIGNED_IN_ONLY = "policy.approve"
"""The action of a second person: of somebody who signed in, never of a machine, whatever a rule says."""
NAMED_TYPES_ONLY = ("policy.write",)
"""Actions that a machine holds only by a rule whose `subjects.types` names `service`."""
IMPLIED: Mapping[str, tuple[str, ...]] = {"tokenize": INFERENCE_ACTIONS}
"""Actions that nobody grants: who may do one of the others with a model may do this with it, under the same duties."""

AUTO_GRANT_LABEL = "auto_grant"
"""A model added after a version was written falls under that version's wildcards only with this label set to `true`."""
LOCALITY_LABEL = "locality"
