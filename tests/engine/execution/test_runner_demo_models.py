"""The two demo models against Hugging Face's model classes, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from engine.requests import SamplingParams
from engine.weights.loader import open_checkpoint
from tests.fakes.demo_models import LARGE, SMALL, demo_model
from tests.fakes.hand_steps import HandDriver, HandSequence

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]
NEW_TOKENS = 24
PROMPTS = (
    "What is the capital of France?",
    "¿Qué es una esclusa y para qué sirve?",
    "Write a Python function that reverses a list.",
    "Explain photosynthesis to a child.",
    "List three fruits.",
    "Translate to Spanish: the water level rises.",
    "2 + 2 =",
    "Escribe un haiku sobre el mar.",
    "Who wrote Don Quixote?",
    "Give me a JSON object with name and age.",
    "What is the difference between TCP and UDP?",
    "Resume en una frase la historia de Chile.",
    "def fibonacci(n):",
    "Once upon a time",
    "日本の首都はどこですか？",
    "Name a prime number larger than 100.",
    "¿Cuánto es 15 por ciento de 240?",
    "Describe an elephant in five words.",
    "SELECT name FROM users WHERE",
    "Why is the sky blue? 🌤️",
)


def load_reference(path: Path) -> Any:
    """Hugging Face's own model class with the file's weights (whose reading has tests of its own)."""
    checkpoint = open_checkpoint(path)
    raw = dict(checkpoint.raw_config)
    name = raw["architectures"][0].removesuffix("ForCausalLM")
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**raw))
    weights = {
        key: checkpoint.take(key, tuple(parameter.shape), torch.float32)
        for key, parameter in model.state_dict().items()
        if key in checkpoint
    }
    if checkpoint.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    checkpoint.finish()
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["small", "large"])
def pair(request: pytest.FixtureRequest) -> tuple[ModelRunner, Any]:
    path = demo_model(request.param)
    config = EngineConfig(str(path), dtype="float32", device="cpu", max_model_len=512, num_kv_blocks=400)
    return ModelRunner(config), load_reference(path)


def test_greedy_tokens_equal_hugging_face_for_twenty_prompts(pair: tuple[ModelRunner, Any]) -> None:
    """Each of our tokens is the one that Hugging Face would have chosen after the same tokens: by induction, the
    greedy generations are equal."""
    runner, reference = pair
    tokenizer = runner.tokenizer
    sequences = [HandSequence(tokenizer.apply_chat_template([{"role": "user", "content": p}])) for p in PROMPTS]
    HandDriver(runner, sequences, chunk=11).generate(NEW_TOKENS)
    for prompt, sequence in zip(PROMPTS, sequences, strict=True):
        ids = sequence.token_ids[: sequence.num_prompt_tokens + NEW_TOKENS]
        with torch.inference_mode():
            logits = reference(torch.tensor([ids]), logits_to_keep=NEW_TOKENS + 1).logits[0]
        assert logits[:-1].argmax(dim=-1).tolist() == ids[-NEW_TOKENS:], prompt


@pytest.mark.parametrize("quantization", ["int8", "gguf"])
def test_quantized_layers_stay_close_to_the_full_precision(quantization: str) -> None:
    texts = ("The lock lets a boat pass between two levels of water.", "La capital de Francia es París.")
    path = str(demo_model(SMALL))
    means = []
    for kept in (None, quantization):
        config = EngineConfig(path, dtype="float32", device="cpu", num_kv_blocks=64, quantization=kept)
        runner = ModelRunner(config)
        params = SamplingParams(temperature=0.0, prompt_logprobs=0)
        sequences = [HandSequence(runner.tokenizer.encode(text), params) for text in texts]
        found = HandDriver(runner, sequences).step(prompt_logprobs=True).prompt_logprobs
        means.append([sum(entry[1] for entry in found[slot]) / len(found[slot]) for slot in range(len(texts))])
    assert means[1] == pytest.approx(means[0], abs=0.15)
