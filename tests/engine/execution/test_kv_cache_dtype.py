"""Caches of another precision than the model's, and manifests of kernels where there is no GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.execution.compiled_kernels import CompiledKernels
from engine.execution.device import kv_dtype
from engine.execution.runner import ModelRunner
from engine.requests import SamplingParams
from engine.serving.llm import LLM
from kernels import dispatch
from kernels.triton.guard import LateCompiles
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path)
    return path


def test_the_cache_follows_the_model_or_what_is_asked_for() -> None:
    for asked, expected in (
        ("auto", torch.bfloat16),
        ("fp8", torch.float8_e4m3fn),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("float32", torch.float32),
    ):
        assert kv_dtype(EngineConfig("m", kv_cache_dtype=asked), torch.bfloat16) is expected  # type: ignore[arg-type]


def test_a_float8_cache_has_four_times_the_blocks_of_a_float32_one(folder: Path) -> None:
    blocks = []
    for kind in ("auto", "fp8"):
        config = EngineConfig(
            str(folder),
            dtype="float32",
            kernel_backend="reference",
            kv_cache_bytes=1 << 20,
            kv_cache_dtype=kind,  # type: ignore[arg-type]
        )
        blocks.append(ModelRunner(config).num_blocks)
    assert blocks[1] == 4 * blocks[0]


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_answers_from_a_float8_cache_are_near(folder: Path, backend: str) -> None:
    scores = []
    for kind in ("auto", "fp8"):
        llm = LLM(str(folder), dtype="float32", kernel_backend=backend, kv_cache_dtype=kind, max_num_seqs=2)
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        (output,) = llm.generate(["the quick brown fox jumps"], parameters, use_tqdm=False)
        llm.close()
        assert output.prompt_logprobs is not None
        scores.append(torch.tensor([next(iter(row.values())).logprob for row in output.prompt_logprobs if row]))
    assert 0 < float((scores[0] - scores[1]).abs().mean()) < 0.1


def test_the_cpp_kernels_refuse_it_by_name(folder: Path) -> None:
    config = EngineConfig(str(folder), kernel_backend="cpu", kv_cache_dtype="fp8", num_kv_blocks=4)
    with pytest.raises(InvalidInput, match="float8") as refusal:
        ModelRunner(config)
    assert refusal.value.field == "kv_cache_dtype"
    assert refusal.value.hint == "use `auto`"


def test_a_manifest_without_a_gpu_kernel_is_refused(folder: Path, tmp_path: Path) -> None:
    config = EngineConfig(str(folder), kernel_manifest=str(tmp_path))
    with pytest.raises(InvalidInput, match="no kernel of this model runs on a GPU"):
        CompiledKernels(config, dispatch.load("reference", "cpu"))
    with pytest.raises(InvalidInput, match="cannot be read") as refusal:
        CompiledKernels(config, dispatch.load("triton", "meta"))
    assert refusal.value.hint is not None
    assert "esclusa kernels build" in refusal.value.hint


def test_late_compiles_are_told_once(folder: Path) -> None:
    kernels = CompiledKernels(EngineConfig(str(folder)), dispatch.load("triton", "meta"))
    guard = kernels._guard
    assert isinstance(guard, LateCompiles)
    guard._seen(src=None, cache_hit=True)
    assert kernels.late() == 0
    guard._seen(src=None, cache_hit=False)
    assert (kernels.late(), kernels.late()) == (1, 0)
    assert os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available()
