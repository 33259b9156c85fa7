"""Whole models over Triton's kernels: interpreted here, compiled where there is a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, GenerationRequest, LLMEngine, SamplingParams
from engine.models.registry import load_model
from engine.models.source import WeightSource
from engine.weights.loader import open_checkpoint
from kernels import dispatch
from tests.engine.models.test_families import make_reference, run_paged
from tests.fakes.small_model import save_small_llama

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="the caches of this test lie on the CPU")
@pytest.mark.parametrize(
    "family",
    ["mistral with a window", "qwen3 moe", "mixtral with tanh gelu", "gemma2 with soft caps"],
)
def test_logits_equal_hugging_face(family: str, tmp_path: Path) -> None:
    """A chunk, a shorter one and two single tokens, of two sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = make_reference(family, tmp_path)
    ops = dispatch.load("triton", "cpu")
    model = load_model(WeightSource(open_checkpoint(tmp_path), ops, torch.device("cpu"), torch.float32))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 120, (size,), generator=generator).tolist() for size in (23, 12)]
    for prompt, ours in zip(prompts, run_paged(model, ops, prompts, [14, 7]), strict=True):
        with torch.no_grad():
            theirs = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_loaded_model_runs_every_op_in_triton() -> None:
    """But for the fused stack, which is made of them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    elsewhere = {choice.op: choice.backend for choice in dispatch.load("triton", device).report()}
    assert {op for op, backend in elsewhere.items() if backend != "triton"} == {"pack_stack", "decoder_stack"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_small_llama(path)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[int, ...]]:
    return answers(folder, "cpu", "cpu")


def requests() -> list[GenerationRequest]:
    kinds = (
        SamplingParams(temperature=0.0, max_tokens=6),
        SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=11, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=1.3, min_p=0.02, seed=12, max_tokens=6, ignore_eos=True, logprobs=3),
        SamplingParams(
            temperature=0.8, seed=13, max_tokens=6, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={5: 2.0}
        ),
    )
    prompts = [tuple((7 * place + 3 * row) % 256 for place in range(5 + 4 * row)) for row in range(len(kinds))]
    return [
        GenerationRequest(f"r{row}", prompt, kind)
        for row, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]


def answers(folder: Path, backend: str, device: str) -> list[tuple[int, ...]]:
    engine = LLMEngine(
        EngineConfig(
            str(folder),
            kernel_backend=backend,  # type: ignore[arg-type]
            device=device,
            dtype="float32",
            block_size=16,
            max_model_len=72,
            num_kv_blocks=40,
            cache_salt_required=False,
        )
    )
    try:
        results = engine.generate(requests())
    finally:
        engine.close()
    assert [result.error for result in results] == [None] * len(results)
    return [tuple(result.choices[0].token_ids) for result in results]


def test_a_seed_gives_the_tokens_of_the_cpu(folder: Path, expected: list[tuple[int, ...]]) -> None:
    """Greedy, cut by top_k, top_p and min_p, and with penalties and a bias: one batch, another device's kernels."""
    assert answers(folder, "triton", "cuda" if torch.cuda.is_available() else "cpu") == expected
