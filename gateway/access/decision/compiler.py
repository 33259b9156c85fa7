"""Compiles a policy document and a catalog into an immutable `Snapshot`, or a list of its problems.

Checks what spans parts of the document: references, cycles, conflicts, duplicates. Does not judge requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from gateway.access.decision.compiled_policy import CompiledBinding, CompiledLimit, CompiledRule, MaskIndex, Snapshot
from gateway.access.decision.lint import warnings_of
from gateway.access.decision.quotas import compile_limit
from gateway.access.document.conditions import Condition, compile_condition
from gateway.access.document.departments import folded
from gateway.access.document.model import Models, PolicySet, RoleBinding, Rule
from gateway.access.document.parsing import location_of
from gateway.access.document.patterns import ModelSelector, compile_pattern
from gateway.access.document.problems import PolicyInvalid, Problem
from gateway.access.document.references import reference_problems, role_closures
from gateway.access.document.source import Source
from gateway.access.document.vocabulary import DATA_CLASSES
from gateway.documents.located_yaml import Path
from gateway.flow.values import ModelCard


def compile_policy(
    document: PolicySet,
    *,
    version: int,
    catalog: Sequence[ModelCard] = (),
    known_models: frozenset[str] | None = None,
    source: Source | None = None,
    name: str = "policy",
) -> Snapshot:
    """Raises `PolicyInvalid` listing every broken reference, cycle, duplicate and conflict."""
    problems = [*reference_problems(document), *_catalog_problems(catalog)]
    if problems:
        raise PolicyInvalid(located(problems, source), source.name if source else name)
    rules = tuple(
        _compile_rule(number, rule, document, known_models)
        for number, rule in enumerate(sorted(document.rules, key=lambda rule: rule.id))
    )
    limits = tuple(compile_limit(limit) for limit in sorted(document.limits, key=lambda limit: limit.id))
    return Snapshot(
        version=version,
        sha256=document.sha256(),
        document=document,
        catalog={card.id: card for card in catalog},
        known_models=known_models,
        rules=rules,
        closures=role_closures(document),
        mappings=_mappings(document),
        bindings=_bindings(document),
        everyone=_mask(rule for rule in rules if rule.everyone),
        by_role=_index((rule, rule.roles) for rule in rules),
        by_principal=_index((rule, rule.principals) for rule in rules),
        by_type=_filter_index((rule, rule.types) for rule in rules),
        by_department=_filter_index((rule, rule.departments) for rule in rules),
        by_tenant=_filter_index((rule, rule.tenants) for rule in rules),
        by_action=_filter_index((rule, rule.actions) for rule in rules),
        by_model={card.id: model_mask(rules, card) for card in catalog},
        modelless=_mask(rule for rule in rules if rule.models is None),
        denies=_mask(rule for rule in rules if rule.deny),
        conditional=_mask(rule for rule in rules if rule.condition is not None),
        condition_groups=_condition_groups(rules),
        limits=limits,
        limit_purposes=frozenset(limit.purpose for limit in limits if limit.purpose is not None),
        named_words=_named_words(rules, limits),
    )


def find_warnings(snapshot: Snapshot, source: Source | None = None, *, seals_content: bool = True) -> list[Problem]:
    """Dead patterns, shadowed rules, roles that give nothing. Never a reason to refuse the document."""
    return located(warnings_of(snapshot, seals_content=seals_content), source)


def model_mask(rules: Iterable[CompiledRule], card: ModelCard) -> int:
    """Rules that apply to `card` as far as the model is concerned; a deny rule without models covers every model."""
    return _mask(rule for rule in rules if (rule.deny if rule.models is None else rule.models.matches(card)))


def located(problems: Iterable[Problem], source: Source | None) -> list[Problem]:
    if source is None:
        return list(problems)
    found = [
        Problem(p.message, p.location or location_of(source, p.path), p.path, p.hint, p.severity, p.kind)
        for p in problems
    ]
    return sorted(found, key=lambda p: (p.location.line, p.location.column) if p.location else (0, 0))


def _catalog_problems(catalog: Sequence[ModelCard]) -> list[Problem]:
    return [
        Problem(f"the catalog has a model called `{card.id}`; `*` is only for patterns")
        for card in catalog
        if "*" in card.id
    ]


def _compile_rule(number: int, rule: Rule, document: PolicySet, known: frozenset[str] | None) -> CompiledRule:
    subjects = rule.subjects
    deny = rule.effect == "deny"
    return CompiledRule(
        number=number,
        id=rule.id,
        deny=deny,
        reason=rule.reason,
        everyone=subjects.everybody,
        roles=frozenset(subjects.roles),
        principals=frozenset(subjects.principals),
        types=_optional_set(subjects.types),
        departments=_optional_set(map(folded, subjects.departments) if subjects.departments else None),
        tenants=_optional_set(subjects.tenants),
        actions=_optional_set(rule.actions),
        models=_selector(rule.models, document, None if deny else known),
        condition=compile_condition(rule.when),
        obligations=rule.obligations,
    )


def _selector(models: Models | None, document: PolicySet, known: frozenset[str] | None) -> ModelSelector | None:
    if models is None:
        return None
    texts = list(models.ids)
    for group in models.groups:
        texts.extend(document.model_groups[group])
    patterns = [compile_pattern(text) for text in texts]
    everything = not patterns
    by_label_alone = everything and not models.any
    return ModelSelector(
        everything=everything,
        exact=frozenset(pattern.text for pattern in patterns if not pattern.wild),
        wild=tuple(pattern for pattern in patterns if pattern.wild),
        labels=tuple(sorted(models.labels.items())),
        known=None if by_label_alone else known,
    )


def _mappings(document: PolicySet) -> Mapping[tuple[str, str, str], frozenset[str]]:
    found: dict[tuple[str, str, str], frozenset[str]] = {}
    for mapping in document.role_mappings:
        key = (mapping.provider, mapping.claim, mapping.equals)
        found[key] = found.get(key, frozenset()) | frozenset(mapping.roles)
    return found


def _bindings(document: PolicySet) -> Mapping[str, tuple[CompiledBinding, ...]]:
    found: dict[str, tuple[CompiledBinding, ...]] = {}
    for binding in document.role_bindings:
        for principal in binding.principals:
            found[principal] = (*found.get(principal, ()), _compile_binding(binding))
    return found


def _compile_binding(binding: RoleBinding) -> CompiledBinding:
    expires = datetime.fromisoformat(binding.expires) if binding.expires else None
    return CompiledBinding(binding.id, frozenset(binding.roles), expires, binding.break_glass)


def _optional_set(values: Iterable[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


def _mask(rules: Iterable[CompiledRule]) -> int:
    mask = 0
    for rule in rules:
        mask |= 1 << rule.number
    return mask


def _named_words(rules: Iterable[CompiledRule], limits: Iterable[CompiledLimit]) -> frozenset[str]:
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    by_rules = {name for one in conditions for name in (*(one.purposes or ()), *(one.excluded_purposes or ()))}
    return frozenset({*DATA_CLASSES, *by_rules, *(limit.purpose for limit in limits if limit.purpose is not None)})


def _condition_groups(rules: Sequence[CompiledRule]) -> tuple[int, ...]:
    groups: dict[tuple[bool, Condition | None], int] = {}
    for rule in rules:
        group = (rule.deny, rule.condition)
        groups[group] = groups.get(group, 0) | 1 << rule.number
    return tuple(groups[rule.deny, rule.condition] for rule in rules)


def _index(pairs: Iterable[tuple[CompiledRule, frozenset[str]]]) -> dict[str, int]:
    index: dict[str, int] = {}
    for rule, values in pairs:
        for value in values:
            index[value] = index.get(value, 0) | 1 << rule.number
    return index


def _filter_index(pairs: Iterable[tuple[CompiledRule, frozenset[str] | None]]) -> MaskIndex:
    pairs = list(pairs)
    rest = _mask(rule for rule, values in pairs if values is None)
    return MaskIndex(_index((rule, values) for rule, values in pairs if values is not None), rest)


def path_of_rule(document: PolicySet, rule_id: str) -> Path:
    for index, rule in enumerate(document.rules):
        if rule.id == rule_id:
            return ("rules", index)
    return ("rules",)
