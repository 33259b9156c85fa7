"""What of a GPU's memory is left for keys and values, over recorded readings, and what to lower when it runs out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import EngineFault, InvalidInput
from engine.execution.device_memory import Reading, asked_for, cache_budget, running_out, what_to_lower
from engine.execution.kv_sizing import block_bytes, count_blocks
from engine.execution.profile_run import run_largest_step, step_size
from engine.execution.runner import ModelRunner
from engine.models.decoder import ForwardBatch
from tests.fakes.tiny_model import write_tiny_model

GIB, MIB = 1 << 30, 1 << 20
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return ModelRunner(EngineConfig(str(folder), dtype="float32", kernel_backend="reference", num_kv_blocks=4))


def reading(free: float, reserved: float, peak: float, total: float = 80) -> Reading:
    return Reading(int(free * GIB), int(total * GIB), int(reserved * GIB), int(peak * GIB))


def test_the_cache_gets_the_share_less_weights_activations_and_all_outside_the_allocator() -> None:
    """15 GiB of weights, 3 more at the peak, half a GiB of context: 72 - 18 - 0.5."""
    budget = cache_budget(0.9, reading(64.5, 15, 15), reading(60.5, 19, 18))
    assert budget.cache == int(53.5 * GIB)
    assert budget.warning is None


def test_what_the_run_held_for_keys_and_values_is_theirs_again_and_graphs_are_not() -> None:
    plain = cache_budget(0.9, reading(64.5, 15, 15), reading(60.5, 19, 18))
    assert cache_budget(0.9, reading(64.5, 15, 15), reading(60.5, 19, 18), reusable=GIB).cache == plain.cache + GIB
    assert cache_budget(0.9, reading(64.5, 15, 15), reading(60.5, 19, 18), graphs=GIB).cache == plain.cache - GIB


def test_memory_that_libraries_took_in_the_run_counts() -> None:
    assert cache_budget(0.9, reading(64.5, 15, 15), reading(59.5, 19, 18)).cache == int(52.5 * GIB)


def test_another_process_that_frees_memory_meanwhile_is_a_warning_and_the_smaller_budget() -> None:
    budget = cache_budget(0.9, reading(54.5, 15, 15), reading(60.5, 19, 18))
    assert budget.cache == int(43.5 * GIB)
    assert "10240 MiB" in (budget.warning or "")


def test_nothing_left_is_zero_and_refused_by_name(runner: ModelRunner) -> None:
    assert cache_budget(0.2, reading(64.5, 15, 15), reading(60.5, 19, 18)).cache == 0
    with pytest.raises(InvalidInput, match="gpu_memory_utilization"):
        count_blocks(EngineConfig("m"), runner.model_config, torch.bfloat16, lambda: 0)


def test_blocks_are_what_fits_in_what_was_measured(runner: ModelRunner) -> None:
    config = EngineConfig("m")
    size = block_bytes(runner.model_config, config.block_size, torch.bfloat16)
    assert count_blocks(config, runner.model_config, torch.bfloat16, lambda: 7 * size + 1) == 7


def test_a_size_that_was_given_is_not_measured(runner: ModelRunner) -> None:
    def measure() -> int:
        raise AssertionError("measured")

    assert count_blocks(EngineConfig("m", num_kv_blocks=9), runner.model_config, torch.bfloat16, measure) == 9


@pytest.mark.parametrize(
    ("settings", "window", "size"),
    [
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, 32768, (2048, 1)),
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, 512, (2048, 4)),
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 2}, 512, (1024, 2)),
        ({"max_num_batched_tokens": 2000, "max_num_seqs": 64}, 512, (2000, 4)),
    ],
)
def test_the_largest_step_has_all_rows_in_as_few_sequences_as_the_window_allows(
    settings: dict[str, int], window: int, size: tuple[int, int]
) -> None:
    assert step_size(EngineConfig("m", **settings), window) == size  # type: ignore[arg-type]


def test_the_run_computes_that_step_on_a_cache_of_one_sequence(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = runner._model
    assert model is not None
    seen: list[tuple[int, int, int]] = []
    forward, logits = model.forward, model.logits

    def count(batch: ForwardBatch) -> torch.Tensor:
        seen.append((len(batch.token_ids), int(batch.plan.kv_len.max()), int(batch.plan.query_start[-1])))
        return forward(batch)

    def count_logits(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return logits(hidden)

    rows: list[int] = []
    monkeypatch.setattr(model, "forward", count)
    monkeypatch.setattr(model, "logits", count_logits)
    config = EngineConfig("m", max_num_batched_tokens=90, max_num_seqs=8)
    held = run_largest_step(config, runner._ops, model, torch.float32, CPU, 32)
    assert seen == [(90, 30, 90)]
    assert rows == [8]
    assert held == 2 * block_bytes(runner.model_config, 16, torch.float32) // runner.model_config.num_layers


def test_what_could_not_be_allocated_is_read_from_the_message() -> None:
    message = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB"
    assert asked_for(message) == 3 * GIB // 2
    assert asked_for("CUDA error: out of memory") is None


@pytest.mark.parametrize(
    ("stage", "settings", "hint"),
    [
        ("profile", {"max_num_batched_tokens": 8192}, "`--max-num-batched-tokens` from 8192 to 4096"),
        ("profile", {"max_num_batched_tokens": 64, "max_num_seqs": 64}, "`--max-num-seqs` from 64 to 32"),
        ("cache", {"kv_cache_bytes": 5}, "`kv_cache_bytes` from 5"),
        ("cache", {}, "`--gpu-memory-utilization` from 0.9 to 0.87"),
        ("step", {}, "`--gpu-memory-utilization` from 0.9 to 0.87"),
        ("weights", {}, "quantized"),
    ],
)
def test_the_hint_names_what_to_lower_and_to_what(stage: str, settings: dict[str, int], hint: str) -> None:
    config = EngineConfig("m", **settings)  # type: ignore[arg-type]
    assert hint in what_to_lower(stage, config, 2 * GIB, 80 * GIB)  # type: ignore[arg-type]


def test_memory_that_runs_out_in_a_step_is_a_fault_with_a_hint(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineFault, match="2048 MiB more") as caught, running_out("step", EngineConfig("m"), CPU):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "--gpu-memory-utilization" in (caught.value.hint or "")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_measured_cache_fits_beside_the_largest_step(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    config = EngineConfig(str(tmp_path), device="cuda", gpu_memory_utilization=0.5, max_model_len=64)
    runner = ModelRunner(config)
    free, total = torch.cuda.mem_get_info()
    assert total - free < total * 0.5 + 64 * MIB
    assert runner.kv_cache_bytes > total * 0.25
