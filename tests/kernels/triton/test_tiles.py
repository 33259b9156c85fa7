"""Tables of tiles: what is chosen for a product, and what may stand in a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from engine import EngineFault, InvalidInput, tune_kernels
from kernels.contracts import KernelError
from kernels.triton import tiles
from kernels.triton.launch import OBSERVERS, Variant
from kernels.triton.measuring import measured as measured_on
from kernels.triton.target import ARCHITECTURES, FP8_FROM, MAX_REGISTERS
from kernels.triton.tiles import ANY, DEFAULTS, STEPS, Tile, busy, choose, parse, splits_of, step_of
from kernels.triton.tuning import CHIPS, FORMS, Measured, candidates, seconds

SHIPPED = sorted(tiles.OURS.glob("product.sm_*.json"))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes a table for sm_90 that comes before ours."""

    def write(*rows: tuple[str, int, int, int], multiprocessors: int = 100) -> None:
        found = [
            {"form": form, "rows": step, "block_m": m, "block_n": n, "num_warps": 4, "num_stages": 3}
            for form, step, m, n in rows
        ]
        document = {"version": tiles.VERSION, "multiprocessors": multiprocessors, "tiles": found}
        (tmp_path / tiles.file_name(90)).write_text(json.dumps(document))

    monkeypatch.setenv(tiles.TABLES_VARIABLE, str(tmp_path))
    tiles.table_of.cache_clear()
    tiles.choose.cache_clear()
    yield write
    tiles.table_of.cache_clear()
    tiles.choose.cache_clear()


@pytest.mark.parametrize(
    ("rows", "step"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, 256), (256, 256), (9999, 256), (None, ANY)]
)
def test_rows_take_the_tiles_of_their_step(rows: int | None, step: int) -> None:
    assert step_of(rows) == step


def test_the_best_tile_is_the_first_that_keeps_multiprocessors_busy(table: Callable[..., None]) -> None:
    table(("dense", 64, 64, 128), ("dense", 64, 64, 64), ("dense", 64, 32, 64))
    # 100 programs on 100 multiprocessors; then 101, of which one is alone in a second wave.
    assert choose("dense", 64, 12_800, 90).block_n == 128
    assert choose("dense", 64, 12_928, 90).block_n == 64


def test_few_rows_take_the_first_tile_since_they_are_split(table: Callable[..., None]) -> None:
    table(("dense", 16, 16, 128), ("dense", 16, 16, 32))
    assert choose("dense", 16, 256, 90).block_n == 128


def test_a_second_product_takes_the_rows_of_the_first(table: Callable[..., None]) -> None:
    table(("codes4", 64, 64, 128), ("codes4", 64, 32, 64))
    assert choose("codes4", 64, 4096, 90, block_m=32).block_n == 64
    assert choose("codes4", 64, 4096, 90, block_m=16) == DEFAULTS[16]


def test_what_no_table_names_has_a_tile(table: Callable[..., None]) -> None:
    table(("codes4", 64, 64, 128))
    assert choose("dense", 256, 4096, 90) == DEFAULTS[256]
    assert choose("dense", 16, 4096, 86) == DEFAULTS[16]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', '{"version": 1, "tiles": [{"form": 1}]}'])
def test_a_damaged_table_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(KernelError, match="here is no table"):
        parse(text, "here")


def test_products_of_few_rows_and_outputs_are_split_along_their_inputs() -> None:
    tile = Tile(16, 64, 4, 3)
    assert splits_of(16, tile, 4096, 64) == 4
    assert splits_of(16, tile, 64, 64) == 8
    assert splits_of(16, tile, 64, 7) == 1
    assert splits_of(16, tile, 65_536, 64) == 1
    assert splits_of(64, tile, 64, 64) == 1
    assert splits_of(ANY, tile, 64, 64) == 1


def test_the_last_wave_counts_as_it_is_filled() -> None:
    assert busy(Tile(16, 64, 4, 3), 16, 6400, 100) == 1.0
    assert busy(Tile(16, 64, 4, 3), 16, 6464, 100) == pytest.approx(101 / 200)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_table_has_tiles_of_every_form_within_the_limits(path: Path) -> None:
    document = json.loads(path.read_text())
    target = ARCHITECTURES[document["architecture"]]
    assert path.name == tiles.file_name(target.capability)
    forms = {form for form in FORMS if form != "fp8" or target.capability >= FP8_FROM}
    found = parse(path.read_text(), path.name)
    assert set(found.tiles) == {(form, step) for form in forms for step in (*STEPS, ANY)}
    for row in document["tiles"]:
        assert row["registers"] <= MAX_REGISTERS
        assert row["shared_bytes"] <= target.shared_bytes
        assert Tile(row["block_m"], row["block_n"], row["num_warps"], row["num_stages"]) in candidates(row["rows"])
    # Any number of rows: one tile, whatever the outputs.
    assert all(len(found.tiles[form, ANY]) == 1 for form in forms)


def test_tables_are_shipped_for_what_is_compiled_by_default() -> None:
    assert {path.name for path in SHIPPED} == {tiles.file_name(int(name[3:])) for name in CHIPS}


def measured(tile: Tile, registers: int = 64, shared_bytes: int = 20_000, step: int = 64) -> Measured:
    return Measured("codes4", step, tile, registers, shared_bytes)


def test_the_model_prefers_bytes_in_flight_and_full_waves() -> None:
    chip = CHIPS["sm_90"]
    deep, shallow = (measured(Tile(16, 64, 4, stages), step=16) for stages in (4, 2))
    assert seconds(deep, chip) <= seconds(shallow, chip)
    many, few = measured(Tile(64, 64, 4, 3)), measured(Tile(64, 64, 4, 3), registers=255, shared_bytes=110_000)
    assert seconds(many, chip) <= seconds(few, chip)
    # Half as many programs leave half of the multiprocessors without work.
    assert seconds(measured(Tile(64, 64, 4, 3)), chip) < seconds(measured(Tile(64, 128, 4, 3)), chip)


def test_candidates_that_spill_or_do_not_fit_are_dropped() -> None:
    program = (
        "from kernels.triton.tuning import compiled\n"
        "from kernels.triton.tiles import Tile\n"
        "from kernels.triton.target import ARCHITECTURES\n"
        "target = ARCHITECTURES['sm_89']\n"
        "good = compiled('dense', 16, Tile(16, 64, 4, 3), target)\n"
        "print(good.registers < 255, good.shared_bytes > 0)\n"
        "print(compiled('dense', 256, Tile(128, 128, 8, 5), target))\n"
        "print(compiled('dense', 256, Tile(256, 256, 4, 2), target))\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True True", "None", "None"], done.stderr


@pytest.mark.parametrize("form", FORMS)
def test_a_measured_table_is_in_the_order_of_its_times(device: torch.device, form: str) -> None:
    """Each tile runs once on a small product; the clock of this test likes wide tiles."""
    sizes = [(16, 16, 32), (16, 16, 64), (64, 32, 64), (64, 64, 64), (64, 64, 128)]
    rows = [
        {"form": form, "rows": step, "block_m": m, "block_n": n, "num_warps": 4, "num_stages": 3}
        for step, m, n in sizes
    ]
    seen: list[Variant] = []
    OBSERVERS.add(seen.append)

    def clock(run: Callable[[], None]) -> float:
        run()
        return 1e-6 / float(dict(seen[-1].constants)["BLOCK_N"] or 1)

    try:
        document = {"architecture": "sm_90", "tiles": rows}
        table = measured_on(document, device, lambda *_: None, clock, size=128, dtype=torch.float32)
    finally:
        OBSERVERS.remove(seen.append)
    order = [(row["rows"], row["block_m"], row["block_n"]) for row in table["tiles"]]
    assert order == [(16, 16, 64), (16, 16, 32), (64, 64, 128), (64, 32, 64), (64, 64, 64)]
    assert table["tiles"][0]["microseconds"] == pytest.approx(1 / 64, abs=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_tuning_by_measuring_asks_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(EngineFault, match="no GPU"):
        tune_kernels([], tmp_path, 1, measure=True, progress=lambda *_: None)
    with pytest.raises(InvalidInput, match="sm_80"):
        tune_kernels(["sm_70"], tmp_path, 1, measure=False, progress=lambda *_: None)
