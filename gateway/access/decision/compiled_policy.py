"""A policy version compiled for evaluation: immutable, indexed by bit masks. Knows how to be asked, not to decide.

Rules are numbered in the order of their ids, so nothing depends on the order of the document. Bit *n* of every mask
stands for rule *n*; the rules that apply to a request are the intersection of a few masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway.access.document.conditions import Condition
from gateway.access.document.model import ObligationSpec, PolicySet
from gateway.access.document.patterns import ModelSelector
from gateway.flow.values import LimitRule, ModelCard, Obligations


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule with its references resolved. `None` in a filter means "not filtered"."""

    number: int
    id: str
    deny: bool
    reason: str | None
    everyone: bool
    roles: frozenset[str]
    principals: frozenset[str]
    types: frozenset[str] | None
    departments: frozenset[str] | None
    tenants: frozenset[str] | None
    actions: frozenset[str] | None
    models: ModelSelector | None
    condition: Condition | None
    obligations: ObligationSpec | None


@dataclass(frozen=True, slots=True)
class MaskIndex:
    """Value -> rules that name it; `rest` are the rules that do not filter on this dimension."""

    named: Mapping[str, int]
    rest: int

    def get(self, value: str | None) -> int:
        if value is None:
            return self.rest
        return self.named.get(value, 0) | self.rest


@dataclass(frozen=True, slots=True)
class CompiledBinding:
    id: str
    roles: frozenset[str]
    expires: datetime | None
    break_glass: bool


@dataclass(frozen=True, slots=True)
class CompiledLimit:
    """A limit: what it counts by, and `filters` that say to whom it applies. `quantities` complete its `LimitRule`.

    Departments are in their folded spelling.
    """

    kind: str
    filters: tuple[tuple[str, str], ...]
    """(`user`, `department`, `role` or `tenant`, the value it must have)."""
    model: str | None
    """The pattern as written; with it and without `each` the pattern itself names the counter."""
    models: ModelSelector | None
    each: bool
    parts: tuple[str, ...]
    """The fields of the scope that name the one counter; empty with `each`."""
    purpose: str | None
    quantities: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """The outcome of a set of matched rules; the same for every request that matches the same set."""

    denied_by: CompiledRule | None
    allowed_by: CompiledRule | None
    matched: tuple[str, ...]
    obligations: Obligations
    localities: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    version: int
    sha256: str
    document: PolicySet
    catalog: Mapping[str, ModelCard]
    known_models: frozenset[str] | None
    """Catalog ids when the version was written; wildcard grants reach no later model. None: no such bound."""
    rules: tuple[CompiledRule, ...]
    closures: Mapping[str, frozenset[str]]
    """Role -> itself and all it inherits."""
    mappings: Mapping[tuple[str, str, str], frozenset[str]]
    """(provider, claim, value) -> roles."""
    bindings: Mapping[str, tuple[CompiledBinding, ...]]
    """`<issuer>#<subject>` -> roles given by name."""
    everyone: int
    by_role: Mapping[str, int]
    by_principal: Mapping[str, int]
    by_type: MaskIndex
    by_department: MaskIndex
    by_tenant: MaskIndex
    by_action: MaskIndex
    by_model: Mapping[str, int]
    """Catalog id -> rules whose model part covers it."""
    modelless: int
    """Rules without a model part."""
    denies: int
    conditional: int
    condition_groups: tuple[int, ...]
    """For each rule, the rules of the same effect that ask exactly the same: one answer settles all of them."""
    limits: tuple[CompiledLimit, ...]
    limit_purposes: frozenset[str] = frozenset()
    """Purposes that some limit names: no other one makes a difference to the limits of a request."""
    named_words: frozenset[str] = frozenset()
    """Purposes that some rule or limit names, and the data classes."""
    settled: dict[int, RuleOutcome] = field(default_factory=dict, repr=False)
    """Cache of a pure function of the snapshot, bounded by the evaluator."""
    limit_rules: dict[tuple[object, ...], tuple[LimitRule, ...]] = field(default_factory=dict, repr=False)
    """Cache of resolved limits per caller and model, bounded by `quotas`."""

    @property
    def etag(self) -> str:
        return etag_of(self.version, self.sha256)


def etag_of(version: int, sha256: str) -> str:
    """Strong entity tag of a version (RFC 9110 section 8.8.3), quotes included."""
    return f'"v{version}-{sha256[:12]}"'
