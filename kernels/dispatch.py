"""Chooses a back end per op, once, and can say why: `dispatch.load(backend="auto") -> Ops`.

Owns the choice only. Knows which back ends exist and asks each what it can do here; must not know how any op works.
A back end that cannot run is never an error under `auto`: the reference takes over and `report()` names the reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from kernels.contracts import FAMILIES, OP_FILES, STACK_OPS, STACK_PARTS, Choice, KernelError, Ops

Backend = Literal["auto", "reference", "cpu", "triton"]
WITH_DETERMINISM = ("pack_linear", "pack_experts", "plan_attention")
"""Ops that carry the promise of `deterministic` in the value they make."""
COMPOSED = ("decoder_stack",)
"""Reference ops made of other ops: they take the chosen ones as the keyword `ops`, which `load` binds."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a back end can run here. `reason` says why not; `detail` says how it runs (instruction set)."""

    usable: bool
    reason: str = ""
    detail: str = ""
    by_name_only: bool = False
    """Whether `auto` passes it over: it runs, but slower than any other."""


class LoadedOps:
    """The ops of one load. Satisfies `kernels.contracts.Ops`; each op is a plain attribute."""

    def __init__(self, functions: dict[str, Callable[..., Any]], choices: list[Choice], deterministic: bool) -> None:
        self.__dict__.update(functions)
        self.deterministic = deterministic
        self._choices = tuple(choices)

    def report(self) -> list[Choice]:
        return list(self._choices)


def load(
    backend: Backend = "auto",
    device: torch.device | str | None = None,
    *,
    deterministic: bool = False,
    threads: int | Literal["auto"] | None = None,
) -> Ops:
    """Choose the back end of every op. `device` None means CUDA where present, else CPU.

    `threads` None lets the CPU kernels follow `torch.set_num_threads`. A number (`auto`: what torch had at first) gives
    them that many threads of their own and leaves torch one, so that its idle workers do not spin on our cores.
    Raises `KernelError` when a named back end cannot run here; under `auto` slower ones take over instead.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = {name: probe(where) for name, probe in PROBES.items()}
    if backend not in ("auto", *PROBES):
        raise KernelError(f"back end {backend!r} is unknown; choose auto, {', '.join(PROBES)}")
    if backend != "auto" and not found[backend].usable:
        raise KernelError(f"back end {backend!r} cannot run on {where}: {found[backend].reason}")
    automatic = [name for name in PROBES if found[name].usable and not found[name].by_name_only]
    order = automatic if backend == "auto" else [backend, "reference"]
    if order[0] == "triton" and found["triton"].by_name_only and where.type != "meta":
        importlib.import_module("kernels.triton.interpreter").make_exact()
    if threads is not None and order[0] == "cpu":
        importlib.import_module("kernels.cpu.library").THREADS.own(None if threads == "auto" else threads)
    selected = _select(order)
    functions: dict[str, Callable[..., Any]] = {}
    choices: list[Choice] = []
    for op, chosen in selected.items():
        function = _function(chosen, op)
        functions[op] = functools.partial(function, deterministic=True) if _promises(op, deterministic) else function
        off = {name: _why_off(name, op, found[name], backend, selected) for name in PROBES if name != chosen}
        choices.append(Choice(op, chosen, found[chosen].detail, off))
    ops = LoadedOps(functions, choices, deterministic)
    vars(ops).update({op: functools.partial(functions[op], ops=ops) for op in COMPOSED if selected[op] == "reference"})
    return cast(Ops, ops)


def _select(order: Sequence[str]) -> dict[str, str]:
    """The back end of every op: the first in `order` that offers it, but a fused stack only with all of its parts."""
    selected = {op: next(name for name in order if _offers(name, op)) for op in OP_FILES}
    if any(selected[part] != selected["decoder_stack"] for part in STACK_PARTS):
        selected |= dict.fromkeys(STACK_OPS, "reference")
    return selected


def _promises(op: str, deterministic: bool) -> bool:
    return deterministic and op in WITH_DETERMINISM


def _offers(backend: str, op: str) -> bool:
    """A back end offers an op when it offers the whole family that shares its private layout."""
    family = next((names for names in FAMILIES if op in names), frozenset({op}))
    return all(_function_or_none(backend, name) is not None for name in family)


def _function(backend: str, op: str) -> Callable[..., Any]:
    function = _function_or_none(backend, op)
    if function is None:
        raise KernelError(f"back end {backend!r} has no op {op!r}")
    return function


def _function_or_none(backend: str, op: str) -> Callable[..., Any] | None:
    module = f"kernels.{backend}.{OP_FILES[op]}"
    if importlib.util.find_spec(module) is None:
        return None
    function: Callable[..., Any] | None = getattr(importlib.import_module(module), op, None)
    return function


def _why_off(name: str, op: str, availability: Availability, asked: str, selected: dict[str, str]) -> str:
    if not availability.usable:
        return availability.reason
    if not _offers(name, op):
        return "has no such op"
    if op in STACK_OPS and (parts := [part for part in STACK_PARTS if selected[part] != name]):
        return f"runs its own ops alone, and {selected[parts[0]]} was chosen for {parts[0]}"
    if availability.by_name_only and asked == "auto":
        return "it is interpreted, which is for tests: ask for it by name"
    return f"back end {asked!r} was asked for" if asked != "auto" else "a faster back end was found"


def _probe_triton(device: torch.device) -> Availability:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "meta" and importlib.util.find_spec("triton") is not None:
        return Availability(True, detail="recorded, not run", by_name_only=True)
    if device.type != "cuda" and not interpreted:
        return Availability(False, f"device is {device.type}, not cuda")
    if importlib.util.find_spec("triton") is None:
        return Availability(False, "the triton package is not installed (pip install 'esclusa[gpu]')")
    if interpreted:
        return Availability(True, detail="interpreted (TRITON_INTERPRET=1)", by_name_only=True)
    return Availability(True, detail=torch.cuda.get_device_name(device))


def _probe_cpu(device: torch.device) -> Availability:
    if device.type != "cpu":
        return Availability(False, f"device is {device.type}, not cpu")
    if importlib.util.find_spec("kernels.cpu.build") is None:
        return Availability(False, "the C++ kernels are not part of this installation")
    build = importlib.import_module("kernels.cpu.build")
    usable, reason, detail = build.availability()
    return Availability(usable, reason, detail)


def _probe_reference(device: torch.device) -> Availability:
    return Availability(True, detail=f"torch {torch.__version__} on {device.type}")


PROBES: dict[str, Callable[[torch.device], Availability]] = {
    "triton": _probe_triton,
    "cpu": _probe_cpu,
    "reference": _probe_reference,
}
"""Fastest first."""
