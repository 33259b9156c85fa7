"""Sentence vectors from a BERT-family encoder: batches by length, mean or first-token pooling, unit length.

Owns the sentence-transformers conventions (`1_Pooling/config.json`, `sentence_bert_config.json`). Such a model keeps no
cache and generates nothing, so its `Runner` side has one block and refuses steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineFault, UnsupportedModel
from engine.execution.device import load_ops
from engine.models.bert import BertEncoder
from engine.models.source import WeightSource
from engine.step import Step, StepResult
from engine.text.tokenizer import ChatTokenizer
from engine.weights.loader import Checkpoint
from kernels.identity import kernels_sha256

_BATCH_TOKENS = 8192
"""Padded tokens that are encoded at once."""


class SentenceEncoder:
    """Implements `engine.ports.Embedder`, and `engine.step.Runner` as a model that cannot generate.

    `auto` precision is float32: the vectors are compared, and these models are small.
    """

    num_blocks = 1

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.block_size, self.vocab_size = config.block_size, checkpoint.config.vocab_size
        self.eos_token_ids: frozenset[int] = frozenset()
        self.model_config = checkpoint.config
        self.tokenizer = ChatTokenizer.from_checkpoint(checkpoint)
        self._device = device
        ops = load_ops(config, device)
        self.kernels_sha256 = kernels_sha256(ops)
        with torch.inference_mode():
            self._model = BertEncoder(WeightSource(checkpoint, ops, device, dtype))
        self._first_token = _pools_first_token(checkpoint.path)
        self.max_model_len = min(
            longest_sentence(checkpoint), config.max_model_len or checkpoint.config.max_position_embeddings
        )

    def embed(self, token_id_lists: Sequence[Sequence[int]]) -> list[list[float]]:
        """One unit vector per input, in order. Inputs carry the model's own [CLS] and [SEP]
        (`tokenizer.encode(text, add_special_tokens=True)`); none is longer than `max_model_len`."""
        order = sorted(range(len(token_id_lists)), key=lambda index: len(token_id_lists[index]))
        vectors: list[list[float]] = [[] for _ in order]
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(token_id_lists[order[end]]) <= _BATCH_TOKENS:
                end += 1
            group = order[start:end]
            for index, vector in zip(group, self._encode([token_id_lists[i] for i in group]).tolist(), strict=True):
                vectors[index] = vector
            start = end
        return vectors

    def _encode(self, group: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor([len(ids) for ids in group])
        padded = torch.zeros(len(group), int(lengths.max()), dtype=torch.int64)
        for row, ids in zip(padded, group, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        lengths = lengths.to(self._device)
        with torch.inference_mode():
            hidden = self._model.forward(padded.to(self._device), lengths).float()
            if self._first_token:
                return F.normalize(hidden[:, 0], dim=1)
            real = torch.arange(hidden.shape[1], device=self._device) < lengths[:, None]
            return F.normalize((hidden * real[:, :, None]).sum(dim=1), dim=1)

    def execute(self, step: Step) -> StepResult:
        if step.work:
            raise EngineFault("this model encodes sentences and generates no text", hint="use the embeddings endpoint")
        return StepResult()

    def release_weights(self) -> None:
        """The weights are small; they stay."""

    def restore_weights(self) -> None:
        """They never left."""

    def close(self) -> None:
        """Nothing outlives this object."""


def _pools_first_token(directory: Path) -> bool:
    settings = _read(directory / "1_Pooling" / "config.json")
    modes = {key for key, value in settings.items() if key.startswith("pooling_mode") and value}
    if modes - {"pooling_mode_mean_tokens", "pooling_mode_cls_token"}:
        raise UnsupportedModel(f"pooling {sorted(modes)}", hint="supported: mean tokens, cls token")
    return "pooling_mode_cls_token" in modes


def longest_sentence(checkpoint: Checkpoint) -> int:
    """In tokens, marks included."""
    declared = _read(checkpoint.path / "sentence_bert_config.json").get("max_seq_length")
    return min(int(declared or checkpoint.config.max_position_embeddings), checkpoint.config.max_position_embeddings)


def _read(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return settings
