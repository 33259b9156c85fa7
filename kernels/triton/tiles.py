"""Tiles of `product.multiply`: a table per GPU architecture in `configs/`, best first, by `esclusa kernels tune`.

A tile is chosen by the form of the weight and by how many rows there are, in three steps; of the tiles of a step the
first one wins whose last wave of programs leaves few multiprocessors idle. `ESCLUSA_KERNEL_TABLES` names a folder whose
tables come before ours. Without any table, tiles that every architecture holds.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from kernels.contracts import KernelError
from kernels.triton.launch import Constant, Schedule

TABLES_VARIABLE = "ESCLUSA_KERNEL_TABLES"
OURS = Path(__file__).parent / "configs"
VERSION = 1
ANY = 0
"""The step for any number of rows, so that a row's sum has one order always."""
STEPS = (16, 64, 256)
"""A product of up to so many rows takes the tiles of this step; the last one takes more, too."""
ENOUGH = 0.85
"""Of the best share of busy multiprocessors: FlashAttention's rule for its splits (hopper/heuristics.h)."""
PROGRAMS = 256
"""Programs that a product of few rows is split into, and inputs of a split at least, in chunks."""
MOST_SPLITS, CHUNKS_OF_A_SPLIT = 8, 4


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and outputs of one program, and how it is compiled."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Table:
    """Of one architecture: (form, step) -> tiles, best first."""

    multiprocessors: int
    tiles: dict[tuple[str, int], tuple[Tile, ...]]


DEFAULTS = {
    16: Tile(16, 64, 4, 3),
    64: Tile(64, 64, 8, 2),
    256: Tile(64, 64, 8, 2),
    ANY: Tile(64, 64, 8, 2),
}


def step_of(rows: int | None) -> int:
    """`rows` None: any number of them."""
    if rows is None:
        return ANY
    return next((step for step in STEPS if rows <= step), STEPS[-1])


def file_name(capability: int) -> str:
    return f"product.sm_{capability}.json"


@lru_cache
def table_of(capability: int) -> Table:
    """Raises KernelError for a table that cannot be read."""
    for folder in _folders():
        path = folder / file_name(capability)
        if path.is_file():
            return parse(path.read_text(encoding="utf-8"), path.name)
    return Table(1, {})


def tables_sha256() -> str:
    """Of every table that may be read here, in the order they are looked for: other tiles sum in another order."""
    digest = hashlib.sha256()
    for folder in _folders():
        for path in sorted(folder.glob("product.sm_*.json")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _folders() -> tuple[Path, ...]:
    named = os.environ.get(TABLES_VARIABLE)
    return (*([Path(named)] if named else []), OURS)


def parse(text: str, name: str) -> Table:
    try:
        document: dict[str, Any] = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}, expected {VERSION}")
        found: dict[tuple[str, int], tuple[Tile, ...]] = {}
        for row in document["tiles"]:
            tile = Tile(row["block_m"], row["block_n"], row["num_warps"], row["num_stages"])
            key = (row["form"], row["rows"])
            found[key] = (*found.get(key, ()), tile)
        return Table(int(document["multiprocessors"]), found)
    except (ValueError, KeyError, TypeError) as error:
        raise KernelError(f"{name} is no table of tiles: {error}") from error


def busy(tile: Tile, rows: int, outputs: int, multiprocessors: int) -> float:
    """Share of multiprocessors that have work, on average over the waves of programs."""
    waves = ceil(rows / tile.block_m) * ceil(outputs / tile.block_n) / multiprocessors
    return waves / ceil(waves)


@lru_cache(maxsize=4096)
def choose(form: str, step: int, outputs: int, capability: int, block_m: int | None = None) -> Tile:
    """`block_m` set: one of the tiles with so many rows, or the first of them at least that the architecture holds."""
    table = table_of(capability)
    fallback = DEFAULTS[step]
    if block_m is not None and fallback.block_m != block_m:
        fallback = next((tile for tile in DEFAULTS.values() if tile.block_m == block_m), fallback)
    found = table.tiles.get((form, step), (fallback,))
    fitting = [tile for tile in found if block_m in (None, tile.block_m)] or [fallback]
    rows = step or STEPS[0]
    shares = [busy(tile, rows, outputs, table.multiprocessors) for tile in fitting]
    # A product of few rows is split along its inputs instead.
    enough = 0.0 if step == STEPS[0] else ENOUGH * max(shares)
    return next(tile for tile, share in zip(fitting, shares, strict=True) if share >= enough)


def splits_of(step: int, tile: Tile, outputs: int, chunks: int) -> int:
    """Parts along the inputs: more than one for few rows alone."""
    splits, programs = 1, ceil(outputs / tile.block_n)
    while step == STEPS[0] and splits < MOST_SPLITS and splits * programs < PROGRAMS:
        if chunks // splits < 2 * CHUNKS_OF_A_SPLIT:
            break
        splits *= 2
    return splits


def constants_of(tile: Tile, splits: int) -> tuple[dict[str, Constant], Schedule]:
    constants: dict[str, Constant] = {"SPLITS": splits, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    return constants, Schedule(tile.num_warps, tile.num_stages)
