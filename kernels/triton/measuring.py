"""Tables of tiles in the order of what a GPU measures: each tile of each step is timed on a product of its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.contracts import FloatWeight, IntWeight, Weight
from kernels.triton.linear import activations, run_product, tile_constants
from kernels.triton.packing import ProductWeight, pack
from kernels.triton.tiles import STEPS, Tile
from kernels.triton.tuning import SIZE, Progress

RUNS = 20
GROUP = 128
Clock = Callable[[Callable[[], None]], float]
"""Seconds of one run, however many it takes to say."""


def seconds_on_gpu(run: Callable[[], None]) -> float:
    """Mean of some runs, by the device's own clock, after a few that warm it up."""
    for _ in range(3):
        run()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(RUNS):
        run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / RUNS


def measured(
    table: dict[str, Any],
    device: torch.device,
    progress: Progress,
    clock: Clock = seconds_on_gpu,
    size: int = SIZE,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """The table with the tiles of each form and step in the order of their time, each with its `microseconds`."""
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(table["tiles"], start=1):
        rows.append(row | {"microseconds": round(1e6 * _seconds(row, device, clock, size, dtype), 3)})
        progress(number, len(table["tiles"]), f"{row['form']} {table['architecture']}")
    places = {key: place for place, key in enumerate(dict.fromkeys((row["form"], row["rows"]) for row in rows))}
    rows.sort(key=lambda row: (places[row["form"], row["rows"]], row["microseconds"]))
    return table | {"tiles": rows}


def _seconds(row: dict[str, Any], device: torch.device, clock: Clock, size: int, dtype: torch.dtype) -> float:
    weight = sample_weight(row["form"], size, device, dtype)
    tile = Tile(row["block_m"], row["block_n"], row["num_warps"], row["num_stages"])
    x = torch.randn(row["rows"] or STEPS[0], size, device=device).to(dtype)
    x, x_scale = activations(x, weight, dtype)
    out = torch.empty(x.shape[0], weight.outputs, dtype=dtype, device=device)
    constants, schedule = tile_constants(weight, row["rows"], tile)
    return clock(lambda: run_product(x, x_scale, weight, None, out, constants, schedule))


def sample_weight(form: str, size: int, device: torch.device, dtype: torch.dtype) -> ProductWeight:
    """Random numbers of the form, `size` by `size`."""
    dense = torch.randn(size, size, device=device)
    weight: Weight = dense.to(dtype)
    if form in ("codes4", "codes8"):
        bits, groups = int(form[-1]), -(-size // GROUP)
        codes = torch.randint(0, 2**bits, (size, size), dtype=torch.uint8, device=device)
        scale = torch.full((size, groups), 0.01, device=device)
        weight = IntWeight(codes, scale, torch.full_like(scale, 3.0), bits, GROUP)
    elif form in ("float8", "fp8"):
        scale = torch.full((size, 1), 0.01, device=device)
        codes = dense.to(torch.float8_e4m3fn)
        weight = FloatWeight(codes, scale, activations="fp8" if form == "fp8" else None)
    return pack([weight], dtype, "int8" if form == "int8" else None)
