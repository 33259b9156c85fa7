"""Policy files on disk for `esclusa policy`: load, compile, run tests and decision tables. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy, find_warnings
from gateway.access.decision.decision_tests import DecisionTable, TestResult, context_of, principal_of, run_tests
from gateway.access.decision.explain import explain
from gateway.access.document.model import Given, PolicySet
from gateway.access.document.parsing import parse_source
from gateway.access.document.problems import Problem
from gateway.access.document.source import Source, read_source
from gateway.errors import ConfigError
from gateway.flow.values import ModelCard


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    source: Source
    snapshot: Snapshot
    warnings: tuple[Problem, ...]


def read_file(path: Path) -> Source:
    """Raises `ConfigError` for a file that cannot be read, `PolicyInvalid` for one that is not YAML or JSON."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(path)) from None
    return read_source(raw, name=str(path), syntax=syntax_of(path))


def syntax_of(path: Path) -> Literal["yaml", "json"]:
    return "json" if path.suffix == ".json" else "yaml"


def load_policy(path: Path, catalog: Sequence[ModelCard] = ()) -> LoadedPolicy:
    """Without a catalog nothing is said about patterns that match no model. Raises `PolicyInvalid`."""
    source = read_file(path)
    known = frozenset(card.id for card in catalog) if catalog else None
    snapshot = compile_policy(
        parse_source(source, PolicySet), version=0, catalog=catalog, known_models=known, source=source
    )
    return LoadedPolicy(source, snapshot, tuple(find_warnings(snapshot, source)))


def run_file(path: Path, catalog: Sequence[ModelCard] = ()) -> tuple[TestResult, ...]:
    """The tests inside a policy, or a decision table against the policy that it names."""
    source = read_file(path)
    kind = source.data.get("kind") if isinstance(source.data, dict) else None
    if kind != "DecisionTable":
        loaded = load_policy(path, catalog)
        return run_tests(loaded.snapshot, loaded.snapshot.document.tests)
    table = parse_source(source, DecisionTable)
    cards = tuple(model.to_card() for model in table.catalog) or tuple(catalog)
    return run_tests(load_policy(path.parent / table.policy, cards).snapshot, table.cases)


def explain_file(path: Path, given: Mapping[str, Any], catalog: Sequence[ModelCard]) -> dict[str, Any]:
    """The explanation of one decision, in the shape of `authz:explain`. Raises `PolicyInvalid` also for `given`."""
    situation = parse_source(
        Source("the options", "", {name: value for name, value in given.items() if value is not None}, {}, {}), Given
    )
    snapshot = load_policy(path, catalog).snapshot
    model = None
    if situation.model is not None:
        model = snapshot.catalog.get(situation.model) or ModelCard(id=situation.model, backend="unknown")
    found = explain(snapshot, principal_of(situation), situation.action, model, context_of(situation))
    return {
        "decision": found.decision.effect.value,
        "rule_id": found.decision.rule_id,
        "reason": found.decision.reason,
        "roles": [asdict(origin) for origin in found.roles],
        "undeclared_roles": list(found.undeclared_roles),
        "matched": list(found.decision.matched),
        "losing": list(found.having("loses")),
        "rules": [asdict(trace) for trace in found.rules],
        "obligations": asdict(found.decision.obligations),
        "limits": [asdict(rule) for rule in found.decision.limits],
    }


def policy_paths(paths: Sequence[Path]) -> list[Path]:
    """Files as given; of a folder, every YAML and JSON file below it."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found.extend(sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml", ".json")))
        else:
            found.append(path)
    if not found:
        raise ConfigError("no policy file was found", hint="name a file, or a folder that holds some")
    return found


def is_table(path: Path) -> bool:
    data = read_file(path).data
    return isinstance(data, dict) and data.get("kind") == "DecisionTable"
