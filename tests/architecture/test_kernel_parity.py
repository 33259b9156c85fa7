"""Back ends offer the same ops under the same names and signatures as the contract."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

import pytest

from kernels.contracts import FAMILIES, OP_FILES, Ops
from kernels.dispatch import COMPOSED, PROBES

BACKENDS = sorted(PROBES)
CONTRACT_ONLY = {"report"}


def _implementation(backend: str, op: str) -> object | None:
    name = f"kernels.{backend}.{OP_FILES[op]}"
    if importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), op, None)


def _shape(function: object) -> list[tuple[str, object]]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(p.name, p.default) for p in parameters if p.name != "self"]


def test_the_contract_names_exactly_the_listed_ops() -> None:
    methods = {name for name, value in vars(Ops).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert methods - CONTRACT_ONLY == set(OP_FILES)


@pytest.mark.parametrize("op", OP_FILES)
def test_the_reference_has_every_op(op: str) -> None:
    assert _implementation("reference", op) is not None


@pytest.mark.parametrize("op", OP_FILES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_signatures_are_those_of_the_contract(backend: str, op: str) -> None:
    function = _implementation(backend, op)
    if function is None:
        assert backend != "reference"
        return
    bound_by_dispatch = [("ops", inspect.Parameter.empty)] if backend == "reference" and op in COMPOSED else []
    assert _shape(function) == _shape(getattr(Ops, op)) + bound_by_dispatch


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_back_end_has_all_or_nothing_of_a_family(backend: str) -> None:
    for family in FAMILIES:
        present = {op for op in family if _implementation(backend, op) is not None}
        assert present in (set(), set(family))
