"""Departments: how their names compare, and whom a caller is charged to. Pure.

Names come from directories that do not agree on case, so case, width and surrounding space do not count: `Finance`,
`finance ` and `FINANCE` are one department, with one counter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from gateway.access.document.model import PolicySet
from gateway.access.document.problems import Problem
from gateway.documents.located_yaml import Path
from gateway.documents.schema_walk import nearest


@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).strip().casefold()


def is_declared(document: PolicySet, name: str) -> bool:
    """Everything is, where the policy declares no list."""
    return not document.departments or folded(name) in {folded(one) for one in document.departments}


def written_departments(document: PolicySet) -> Iterator[tuple[Path, str]]:
    """Every place where the document names one, apart from their declaration and the tests."""
    for name, role in document.roles.items():
        if role.department is not None:
            yield ("roles", name, "department"), role.department
    for index, rule in enumerate(document.rules):
        for place, name in enumerate(rule.subjects.departments or ()):
            yield ("rules", index, "subjects", "departments", place), name
    for index, limit in enumerate(document.limits):
        if limit.scope.department is not None:
            yield ("limits", index, "scope", "department"), limit.scope.department
    if document.settings.default_department is not None:
        yield ("settings", "defaultDepartment"), document.settings.default_department


def undeclared_departments(document: PolicySet) -> Iterator[Problem]:
    """With a list, a name that is not on it is a mistake."""
    for path, name in written_departments(document):
        if not is_declared(document, name):
            yield Problem(
                f"department `{name}` is not declared under `departments`",
                path=path,
                hint=nearest(name, document.departments),
            )


def unchecked_departments(document: PolicySet) -> Iterator[Problem]:
    """Without a list nothing can find a misspelt name, and its budget never binds."""
    if document.departments:
        return
    for path, name in written_departments(document):
        if path[0] == "limits":
            yield Problem(
                f"nothing says that there is a department `{name}`; if tokens spell it otherwise the limit never binds",
                path=path,
                hint="list the departments: `departments: [finance, sales]`",
                severity="warning",
                kind="department",
            )
