"""Cross-checks between the parts of a document: references, inheritance cycles, duplicates, contradictions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from gateway.access.document.conditions import compile_condition
from gateway.access.document.departments import undeclared_departments
from gateway.access.document.model import PolicySet, Rule
from gateway.access.document.problems import Problem
from gateway.access.document.vocabulary import ADMIN_ACTIONS, INFERENCE_ACTIONS, SERVICE_ACTIONS
from gateway.documents.located_yaml import Path
from gateway.documents.schema_walk import nearest


def reference_problems(document: PolicySet) -> list[Problem]:
    return [
        *_duplicates(document),
        *_unknown_roles(document),
        *_unknown_groups(document),
        *undeclared_departments(document),
        *_cycles(document),
        *_rule_shapes(document),
        *_contradictions(document),
    ]


def role_closures(document: PolicySet) -> Mapping[str, frozenset[str]]:
    """Each role with all that it inherits. The document has no cycles and no unknown parents."""
    closures: dict[str, frozenset[str]] = {}
    for name in document.roles:
        reached = {name}
        pending = [name]
        while pending:
            parents = set(document.roles[pending.pop()].inherits) - reached
            reached |= parents
            pending.extend(parents)
        closures[name] = frozenset(reached)
    return closures


def _duplicates(document: PolicySet) -> Iterator[Problem]:
    lists: tuple[tuple[str, list[str]], ...] = (
        ("rules", [rule.id for rule in document.rules]),
        ("limits", [limit.id for limit in document.limits]),
        ("roleBindings", [binding.id for binding in document.role_bindings]),
        ("tests", [test.name for test in document.tests]),
    )
    for section, ids in lists:
        key = "name" if section == "tests" else "id"
        repeated = {found for found, count in Counter(ids).items() if count > 1}
        seen: set[str] = set()
        for index, found in enumerate(ids):
            if found in repeated and found in seen:
                yield Problem(
                    f"`{found}` is already used in `{section}`", None, (section, index, key), "give it another id"
                )
            seen.add(found)
    for index, rule in enumerate(document.rules):
        if rule.id.startswith("builtin:"):
            yield Problem("ids that start with `builtin:` are the gateway's own", None, ("rules", index, "id"))


def _role_names(document: PolicySet) -> Iterator[tuple[Path, str]]:
    for name, role in document.roles.items():
        for place, parent in enumerate(role.inherits):
            yield ("roles", name, "inherits", place), parent
    for index, mapping in enumerate(document.role_mappings):
        for place, name in enumerate(mapping.roles):
            yield ("roleMappings", index, "roles", place), name
    for index, binding in enumerate(document.role_bindings):
        for place, name in enumerate(binding.roles):
            yield ("roleBindings", index, "roles", place), name
    for index, rule in enumerate(document.rules):
        for place, name in enumerate(rule.subjects.roles):
            yield ("rules", index, "subjects", "roles", place), name
    for index, limit in enumerate(document.limits):
        if limit.scope.role is not None:
            yield ("limits", index, "scope", "role"), limit.scope.role
    for index, test in enumerate(document.tests):
        for place, name in enumerate(test.given.roles):
            yield ("tests", index, "given", "roles", place), name


def _unknown_roles(document: PolicySet) -> Iterator[Problem]:
    for path, name in _role_names(document):
        if name not in document.roles:
            yield Problem(f"role `{name}` is not declared under `roles`", path=path, hint=nearest(name, document.roles))


def _unknown_groups(document: PolicySet) -> Iterator[Problem]:
    for index, rule in enumerate(document.rules):
        for place, name in enumerate(rule.models.groups if rule.models else ()):
            if name not in document.model_groups:
                yield Problem(
                    f"model group `{name}` is not declared under `modelGroups`",
                    path=("rules", index, "models", "groups", place),
                    hint=nearest(name, document.model_groups),
                )


def _cycles(document: PolicySet) -> Iterator[Problem]:
    """One problem per role that reaches itself through `inherits`. Iterative: a chain may be thousands long."""
    settled: set[str] = set()
    for start in sorted(document.roles):
        trail: list[str] = []
        pending: list[tuple[str, Iterator[str]]] = []

        def enter(name: str, trail: list[str] = trail, pending: list[tuple[str, Iterator[str]]] = pending) -> None:
            trail.append(name)
            pending.append((name, iter(document.roles[name].inherits)))

        if start not in settled:
            enter(start)
        while pending:
            name, parents = pending[-1]
            parent = next(parents, None)
            if parent is None:
                pending.pop()
                trail.pop()
                settled.add(name)
            elif parent in trail:
                loop = " -> ".join([*trail[trail.index(parent) :], parent])
                yield Problem(f"roles inherit from each other: {loop}", path=("roles", name, "inherits"))
                settled.add(parent)
            elif parent in document.roles and parent not in settled:
                enter(parent)


def _rule_shapes(document: PolicySet) -> Iterator[Problem]:
    for index, rule in enumerate(document.rules):
        for message, field in _shape_faults(rule):
            yield Problem(message, path=("rules", index, field) if field else ("rules", index))


def _shape_faults(rule: Rule) -> Iterator[tuple[str, str]]:
    inference = [action for action in rule.actions or () if action in INFERENCE_ACTIONS]
    administrative = [action for action in rule.actions or () if action in ADMIN_ACTIONS]
    without_model = [action for action in rule.actions or () if action in SERVICE_ACTIONS] + administrative
    if rule.effect == "allow" and rule.actions is None:
        yield "an allow rule must list its `actions`", ""
    if inference and administrative:
        yield (
            f"`{inference[0]}` and `{administrative[0]}` are in one rule; model use and administration are granted "
            "separately",
            "actions",
        )
    if inference and without_model and not administrative:
        yield f"`{inference[0]}` and `{without_model[0]}` are in one rule; the latter has no model", "actions"
    if without_model and rule.models is not None:
        yield f"`{without_model[0]}` has no model; leave `models` out", "models"
    if rule.effect == "allow" and inference and rule.models is None:
        yield "an allow rule for model use must name its `models`", ""
    if rule.effect == "deny" and rule.obligations is not None:
        yield "a deny rule has no obligations", "obligations"


def _contradictions(document: PolicySet) -> Iterator[Problem]:
    """An allow rule and a deny rule with the same who, what and when: the allow can never win, so one is a mistake."""
    seen: dict[str, Rule] = {}
    for index, rule in enumerate(document.rules):
        key = "\n".join(_signature(rule))
        other = seen.setdefault(key, rule)
        if other.effect != rule.effect:
            yield Problem(
                f"`{rule.id}` and `{other.id}` say allow and deny for exactly the same case",
                path=("rules", index),
                hint="deny wins; remove one of them",
            )


def _signature(rule: Rule) -> Iterable[str]:
    subjects = rule.subjects
    for values in (subjects.roles, subjects.principals, rule.actions):
        yield repr(sorted(values or ()))
    for filters in (subjects.types, subjects.departments, subjects.tenants):
        yield repr(sorted(filters or ()))
    yield repr(subjects.everybody)
    yield repr(rule.models and (rule.models.any, sorted(rule.models.ids), sorted(rule.models.groups)))
    yield repr(rule.models and sorted(rule.models.labels.items()))
    yield repr(compile_condition(rule.when))
