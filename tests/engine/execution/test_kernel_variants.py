"""The recorded kernels of a model are all that it launches, and whole models run on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from engine.config import EngineConfig
from engine.execution.kernel_variants import run_step, sample_once, variants_of
from engine.models.registry import load_model
from engine.models.source import WeightSource
from engine.requests import SamplingParams
from engine.serving.llm import LLM
from engine.weights.loader import open_checkpoint
from kernels import dispatch
from kernels.triton.launch import OBSERVERS, Variant
from kernels.triton.recording import META, RecordedOps, recorded
from kernels.triton.target import ARCHITECTURES
from tests.engine.models.test_families import make_reference
from tests.fakes.tiny_model import write_tiny_model

PROMPTS = ["the quick brown fox", "es the", "th"]
PARAMETERS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=6, temperature=0.9, top_p=0.9, top_k=20, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path)
    return path


@pytest.fixture
def launched() -> Iterator[set[Variant]]:
    variants: set[Variant] = set()
    OBSERVERS.add(variants.add)
    yield variants
    OBSERVERS.remove(variants.add)


def config_of(folder: Path, **changes: object) -> EngineConfig:
    changes = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "cache_salt_required": False} | changes
    return EngineConfig(model=str(folder), dtype="float32", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("quantization", [None, "int8", "int4", "experts"])
def test_no_number_of_rows_and_sequences_launches_another_variant(folder: Path, quantization: str | None) -> None:
    if quantization == "int4":
        write_tiny_model(folder.parent / "int4", hidden_size=64, intermediate_size=96, num_attention_heads=4)
        folder = folder.parent / "int4"
    if quantization == "experts":
        quantization, folder = None, folder.parent / "experts"
        make_reference("qwen3 moe", folder)
    config, target = config_of(folder, quantization=quantization), ARCHITECTURES["sm_90"]
    found = variants_of(open_checkpoint(folder), config, torch.bfloat16, target)
    checkpoint = open_checkpoint(folder)
    ops = RecordedOps(dispatch.load("triton", META))
    with torch.inference_mode(), recorded(target) as seen:
        source = WeightSource(checkpoint, ops, META, torch.bfloat16, quantization)  # type: ignore[arg-type]
        model = load_model(source)
        size = (1, 16, model.config.num_kv_heads, model.config.head_dim, torch.bfloat16, META)
        model.bind([ops.allocate_kv_cache(*size) for _ in range(model.config.num_layers)], 128)
        for rows in (*range(1, 300), 511, 512):
            for sequences in {1, 2, 3, 5, 8, rows}:
                if sequences <= min(rows, 8):
                    run_step(ops, model, 16, rows, sequences)  # type: ignore[arg-type]
        sample_once(ops, model.config.vocab_size)  # type: ignore[arg-type]
    assert seen == found


@pytest.mark.parametrize("parameters", [PARAMETERS, SAMPLED])
def test_a_whole_model_runs_on_its_kernels_alone_and_gives_the_same_tokens(
    folder: Path, launched: set[Variant], parameters: SamplingParams
) -> None:
    answers = []
    for backend in ("reference", "triton"):
        llm = LLM(str(folder), dtype="float32", kernel_backend=backend, max_num_seqs=8, max_num_batched_tokens=512)
        answers.append([list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, parameters)])
    assert answers[0] == answers[1]
    assert launched
    if not torch.cuda.is_available():
        compiled = variants_of(open_checkpoint(folder), config_of(folder), torch.float32, ARCHITECTURES["sm_90"])
        assert launched <= compiled
