"""Every family against Hugging Face on small random weights in float32: prefill, chunks, decode, scattered blocks."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.execution.batch import BatchArrays
from engine.models import bert
from engine.models.decoder import Decoder, ForwardBatch
from engine.models.registry import load_model, supported_architectures
from engine.models.source import WeightSource
from engine.step import Step, Work
from engine.weights.loader import open_checkpoint
from kernels import dispatch
from tests.fakes.hand_steps import HandSequence

BLOCK = 4
LENGTH = 37
BASE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1],
    "long_factor": [1.5, 3.0],
    "original_max_position_embeddings": 32,
    "partial_rotary_factor": 0.5,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama, odd group and wide heads": ("Llama", {"num_key_value_heads": 2, "head_dim": 16}),
    "llama with tanh gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "mixtral with tanh gelu": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "gelu_new"}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}}),
    "yarn rope": ("Qwen2", {"rope_parameters": YARN}),
    "mistral with a window": ("Mistral", {"sliding_window": 9, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windowed layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 8, **EXPERTS, "norm_topk_prob": True}),
    "qwen3 moe with a dense layer": ("Qwen3Moe", {"head_dim": 8, **EXPERTS, "mlp_only_layers": [1]}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("Phi3", {}),
    "phi3 long rope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3 with capped logits": ("Gemma3", {"head_dim": 8, "sliding_window": 7, "final_logit_softcapping": 3.0}),
    "gemma2 with soft caps": (
        "Gemma2",
        {
            "head_dim": 8,
            "sliding_window": 7,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
}


def make_reference(family: str, directory: Path) -> Any:
    """A Hugging Face model with random weights, also saved to `directory`."""
    name, extra = FAMILIES[family]
    config_class = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    torch.manual_seed(len(family))
    model = getattr(transformers, f"{name}ForCausalLM")(config_class(**BASE | extra))
    for parameter in model.parameters():
        # Larger than an untrained model's, so that norms, gates and soft caps all matter.
        parameter.data.normal_(0.0, 0.2) if parameter.dim() > 1 else parameter.data.add_(torch.rand_like(parameter))
    model.config._attn_implementation = "eager"
    model.eval().save_pretrained(directory)
    return model


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder, Any]:
    directory = tmp_path_factory.mktemp("family")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = make_reference(request.param, directory)
    ops = dispatch.load("auto", "cpu")
    source = WeightSource(open_checkpoint(directory), ops, torch.device("cpu"), torch.float32)
    return reference, load_model(source), ops


def run_paged(model: Decoder, ops: Any, prompts: list[list[int]], chunks: list[int]) -> list[torch.Tensor]:
    """Logits of all positions of `prompts`, computed together in pieces of the given sizes, then one by one."""
    config = model.config
    sequences = [HandSequence(prompt) for prompt in prompts]
    blocks = iter(torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist())
    for sequence in sequences:
        sequence.block_table = [next(blocks) for _ in range(-(-LENGTH // BLOCK))]
    cpu = torch.device("cpu")
    caches = [
        ops.allocate_kv_cache(64, BLOCK, config.num_kv_heads, config.head_dim, torch.float32, cpu)
        for _ in range(config.num_layers)
    ]
    model.bind(caches, 128 if config.rope.kind != "longrope" else 32)
    arrays = BatchArrays(256, len(prompts), 32, BLOCK, cpu)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    sizes, fresh = iter(chunks), True
    with torch.inference_mode():
        while any(s.num_computed < len(s.token_ids) for s in sequences):
            size = next(sizes, 1)
            left = [(i, s) for i, s in enumerate(sequences) if s.num_computed < len(s.token_ids)]
            work = []
            for slot, s in left:
                work.append(Work(slot, s, s.num_computed, min(size, len(s.token_ids) - s.num_computed), True, fresh))
            fresh = False
            t = arrays.fill(Step(0, tuple(work)))
            plan = ops.plan_attention(
                t.query_start, t.kv_len, t.block_tables, BLOCK, config.num_heads, config.num_kv_heads, config.head_dim
            )
            hidden = model.forward(ForwardBatch(t.token_ids, t.positions, t.slot_mapping, plan))
            out = model.logits(model.last_norm(hidden))
            for item, first, end in zip(work, t.row_starts, t.row_starts[1:], strict=False):
                logits[item.slot].append(out[first:end].clone())
                sequences[item.slot].num_computed += item.num_new
    return [torch.cat(parts) for parts in logits]


@pytest.mark.parametrize("chunks", [[LENGTH], [5, 7, 1, 11], []], ids=["whole prompt", "chunks", "token by token"])
def test_logits_equal_hugging_face(pair: tuple[Any, Decoder, Any], chunks: list[int]) -> None:
    reference, model, ops = pair
    length = LENGTH if model.config.rope.kind != "longrope" else 31
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 120, (size,), generator=generator).tolist() for size in (length, length - 14)]
    for prompt, ours in zip(prompts, run_paged(model, ops, prompts, chunks), strict=True):
        with torch.no_grad():
            theirs = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "OptForCausalLM"))
    source = WeightSource(open_checkpoint(tmp_path), dispatch.load("reference"), torch.device("cpu"), torch.float32)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(source)
    assert "Qwen3MoeForCausalLM" in str(caught.value.hint)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "mixtral", "qwen3 moe"])
@pytest.mark.parametrize("name", ["gelu", "relu", "quick_gelu", "nonsense"])
def test_an_activation_that_is_not_computed_is_refused_by_name(family: str, name: str, tmp_path: Path) -> None:
    make_reference(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": name}))
    source = WeightSource(open_checkpoint(tmp_path), dispatch.load("reference"), torch.device("cpu"), torch.float32)
    with pytest.raises(UnsupportedModel, match=f"activation '{name}'") as caught:
        load_model(source)
    assert "silu" in (caught.value.hint or "")


def test_a_tensor_that_the_family_does_not_use_is_an_error(tmp_path: Path) -> None:
    make_reference("qwen3", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("Qwen3ForCausalLM", "LlamaForCausalLM"))
    source = WeightSource(open_checkpoint(tmp_path), dispatch.load("reference"), torch.device("cpu"), torch.float32)
    with pytest.raises(WeightsMismatch, match="not used"):
        load_model(source)


def test_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "Qwen2ForCausalLM"))
    source = WeightSource(open_checkpoint(tmp_path), dispatch.load("reference"), torch.device("cpu"), torch.float32)
    with pytest.raises(WeightsMismatch, match=r"q_proj\.bias"):
        load_model(source)


def test_the_documentation_lists_exactly_the_supported_architectures() -> None:
    page = (Path(__file__).parents[3] / "docs" / "concepts" / "models.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE))
    assert listed == {*supported_architectures(), *bert.ARCHITECTURES}
