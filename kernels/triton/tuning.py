"""Tables of tiles without a GPU: candidates are compiled, those that spill or do not fit are dropped, a model ranks.

The model counts what bounds a product: bytes to and from memory and the second cache, bytes in flight against the
latency of memory (Little's law), operations against the tensor cores' peak, and waves of programs. It knows no clock:
`esclusa kernels tune` on a GPU measures instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import ceil
from multiprocessing import get_context
from typing import Any

import torch
import triton

from kernels.contracts import KernelError
from kernels.triton.aot import Compiled, compile_variant
from kernels.triton.launch import Constant, Schedule, Variant
from kernels.triton.product import CHUNK, PARTS, SUB, multiply
from kernels.triton.target import FP8_FROM, Architecture
from kernels.triton.tiles import ANY, STEPS, VERSION, Tile, busy, splits_of

FORMS = ("codes4", "codes8", "dense", "float8", "int8", "fp8")
SIZE = 4096
"""Inputs and outputs of the product that candidates are ranked on."""
VOCABULARY, NARROW = 151_936, 896
"""Outputs and inputs of another one, which compiles to other code: those of Qwen2.5-0.5B."""
LATENCY_S = 600e-9
"""Of memory, under load."""
REGISTERS = 65_536
"""Of a multiprocessor."""
KEPT = 4
"""Tiles of a step in a table: the best, and others for outputs that it leaves multiprocessors idle with."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Chip:
    """What a GPU of an architecture has (NVIDIA's data sheets, dense rates)."""

    multiprocessors: int
    bytes_per_s: float
    bf16_per_s: float
    shared_bytes: int
    """Of a multiprocessor."""


CHIPS = {
    "sm_80": Chip(108, 2.0e12, 312e12, 164 << 10),
    "sm_89": Chip(142, 0.86e12, 181e12, 100 << 10),
    "sm_90": Chip(132, 3.35e12, 989e12, 228 << 10),
    "sm_100": Chip(148, 8.0e12, 2250e12, 228 << 10),
}
"""A100, L40S, H100 and B200."""


def candidates(step: int) -> Iterator[Tile]:
    """Tiles in which a thread has 8 to 64 sums, with more stages the fewer rows there are."""
    heights, widths, warps, stages = {
        16: ((16,), (32, 64, 128), (4, 8), (3, 4)),
        64: ((64,), (64, 128), (4, 8), (3, 4)),
        256: ((64, 128), (64, 128), (8,), (2, 3)),
        ANY: ((64,), (64,), (4, 8), (3,)),
    }[step]
    for block_m, block_n, num_warps, num_stages in product(heights, widths, warps, stages):
        if 8 <= block_m * block_n // (32 * num_warps) <= 64:
            yield Tile(block_m, block_n, num_warps, num_stages)


def examples(form: str, tile: Tile) -> Iterator[Variant]:
    """Variants that stand for all of a form: with the kinds of scales and groups that take most registers."""
    half, wide, brain = torch.float16, torch.float32, torch.bfloat16
    plain = {"x": brain, "out": brain, "bias": brain}
    if form in PARTS:
        for group, kept, kind in ((32, wide, "minimum"), (128, half, "zero")):
            types = plain | {"weight": torch.int32, "scale": kept, "offset": kept}
            yield _variant(form, tile, types, group, kind)
        # The logits of a small model: no bias, and float32 out.
        types = {"x": brain, "out": wide, "weight": torch.int32, "scale": wide, "offset": wide}
        yield _variant(form, tile, types, 32, "minimum", outputs=VOCABULARY, inputs=NARROW)
        return
    if form == "dense":
        yield _variant(form, tile, plain | {"weight": brain}, SIZE, "")
        return
    code = {"float8": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[form]
    types = plain | {"weight": code, "scale": wide}
    if form != "float8":
        types |= {"x": code, "x_scale": wide}
    for group in (SIZE,) if form == "int8" else (SIZE, 128):
        yield _variant(form, tile, types, group, "")


def _variant(
    form: str,
    tile: Tile,
    types: dict[str, torch.dtype],
    group: int,
    kind: str,
    outputs: int = SIZE,
    inputs: int = SIZE,
) -> Variant:
    groups = inputs // group
    constants: dict[str, Constant] = {
        "FORM": form,
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "PITCH": inputs,
        "GROUP": group,
        "GROUPS": groups,
        "X_GROUPS": groups if form == "fp8" else 1,
        "OFFSET": kind,
        "SHARED_BY": 1,
        "PARTS": PARTS.get(form, 1),
        "SPLITS": 1,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": CHUNK[form],
    }
    return multiply.variant(types, constants, Schedule(tile.num_warps, tile.num_stages))


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with the most that any of its examples takes."""

    form: str
    step: int
    tile: Tile
    registers: int
    shared_bytes: int


def compiled(form: str, step: int, tile: Tile, target: Architecture) -> Measured | None:
    """None where it does not compile, spills, or does not fit."""
    worst: list[Compiled] = []
    for variant in examples(form, tile):
        try:
            worst.append(compile_variant(variant, target))
        except KernelError:
            return None
        if worst[-1].spill_bytes or worst[-1].faults(target):
            return None
    registers, shared = max(one.registers for one in worst), max(one.shared_bytes for one in worst)
    return Measured(form, step, tile, registers, shared)


def seconds(found: Measured, chip: Chip) -> float:
    """Estimated, of a product of `SIZE` inputs and outputs."""
    tile, rows = found.tile, found.step or STEPS[0]
    threads = 32 * tile.num_warps
    programs = ceil(rows / tile.block_m) * ceil(SIZE / tile.block_n)
    programs *= splits_of(found.step, tile, SIZE, SIZE // CHUNK[found.form])
    resident = min(
        chip.shared_bytes // (found.shared_bytes + 1024),
        REGISTERS // (found.registers * threads),
        2048 // threads,
        ceil(programs / chip.multiprocessors),
    )
    width = {"codes4": 0.5, "dense": 2.0}.get(found.form, 1.0)
    x_width = 1.0 if found.form in ("int8", "fp8") else 2.0
    weight, x = SIZE * SIZE * width, rows * SIZE * x_width
    # The second cache gives about twice what memory gives; the weight comes from memory once.
    again = weight * (ceil(rows / tile.block_m) - 1) + x * ceil(SIZE / tile.block_n)
    depth = SUB if found.form in PARTS else CHUNK[found.form]
    stage = tile.block_n * CHUNK[found.form] * width + tile.block_m * depth * x_width
    flying = resident * (tile.num_stages - 1) * stage
    needed = chip.bytes_per_s * LATENCY_S / chip.multiprocessors
    memory = (weight + again / 2) / chip.bytes_per_s / min(1.0, flying / needed)
    peak = chip.bf16_per_s * (2 if found.form in ("int8", "fp8") else 1)
    # Tiles of fewer rows or outputs feed the tensor cores less.
    fed: float = (min(1.0, tile.block_m / 128) * min(1.0, tile.block_n / 128)) ** 0.5
    padded = ceil(rows / tile.block_m) * tile.block_m
    arithmetic = 2 * padded * SIZE * SIZE / (peak * fed)
    # A product of few rows is split until every multiprocessor has work.
    share = 1.0 if found.step == STEPS[0] else busy(tile, rows, SIZE, chip.multiprocessors)
    return max(memory, arithmetic) / share


def tune(target: Architecture, jobs: int, progress: Progress) -> dict[str, Any]:
    """The table of an architecture, as a document. Raises KernelError where some form has no tile at all."""
    chip = CHIPS[target.name]
    forms = [form for form in FORMS if form != "fp8" or target.capability >= FP8_FROM]
    work = [(form, step, tile) for form in forms for step in (*STEPS, ANY) for tile in candidates(step)]
    found: list[Measured] = []
    # Triton keeps its state of compiling in the process, and one process uses one core.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        pending = [pool.submit(compiled, *one, target) for one in work]
        for number, (one, done) in enumerate(zip(work, pending, strict=True), start=1):
            if (measured := done.result()) is not None:
                found.append(measured)
            progress(number, len(work), f"{one[0]} {target.name}")
    rows: list[dict[str, Any]] = []
    for form in forms:
        for step in (*STEPS, ANY):
            ranked = sorted(
                (one for one in found if (one.form, one.step) == (form, step)),
                key=lambda one: (seconds(one, chip), one.registers),
            )
            if not ranked:
                raise KernelError(f"no tile of {form} for {step} rows fits {target.name}")
            rows += [_row(one) for one in (ranked[:1] if step == ANY else _kept(ranked))]
    return {
        "version": VERSION,
        "architecture": target.name,
        "triton": triton.__version__,
        "multiprocessors": chip.multiprocessors,
        "tiles": rows,
    }


def _kept(ranked: list[Measured]) -> list[Measured]:
    """The best of each size, best first."""
    sizes: dict[tuple[int, int], Measured] = {}
    for one in ranked:
        sizes.setdefault((one.tile.block_m, one.tile.block_n), one)
    return list(sizes.values())[:KEPT]


def _row(one: Measured) -> dict[str, Any]:
    return {
        "form": one.form,
        "rows": one.step,
        "block_m": one.tile.block_m,
        "block_n": one.tile.block_n,
        "num_warps": one.tile.num_warps,
        "num_stages": one.tile.num_stages,
        "registers": one.registers,
        "shared_bytes": one.shared_bytes,
    }


def as_text(document: dict[str, Any]) -> str:
    """One line a tile."""
    head = {name: value for name, value in document.items() if name != "tiles"}
    lines = ",\n  ".join(json.dumps(row) for row in document["tiles"])
    return json.dumps(head)[:-1] + f', "tiles": [\n  {lines}\n]}}\n'
