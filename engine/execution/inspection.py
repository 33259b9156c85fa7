"""Checks that a model's files can be read, without loading its weights: for `esclusa doctor`.

Opens the checkpoint, builds the tokenizer and compiles the chat template as the loader does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.execution.generation_defaults import sampling_defaults


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the files of a model say about it."""

    max_position_embeddings: int
    """The longest prompt and answer together, in tokens."""
    sampling: Mapping[str, float]
    """What its makers recommend, by the names of `SamplingParams`."""


def read_facts(path: str) -> ModelFacts:
    """From the configuration and the tensor directory, in less than a second. Raises EngineError as loading would."""
    from engine.execution.embedder import longest_sentence
    from engine.models import bert
    from engine.weights.loader import open_checkpoint
    from engine.weights.untrusted import model_files

    with model_files(Path(path).name):
        checkpoint = open_checkpoint(path)
        window = checkpoint.config.max_position_embeddings
        if checkpoint.config.architecture in bert.ARCHITECTURES:
            window = longest_sentence(checkpoint)
        return ModelFacts(window, sampling_defaults(checkpoint.path, checkpoint.metadata))


def check_model(path: str) -> str:
    """The contents of the files, in a line. Raises EngineError as loading would.

    Reads the tensor directory and the tokenizer, which takes seconds at most; damage within the weights themselves is
    found by their hash only.
    """
    # Here, because they import torch: whoever imports `engine` for its requests and errors has no need of it.
    from engine.models import bert
    from engine.models.registry import builder_of
    from engine.text.tokenizer import ChatTokenizer
    from engine.weights.loader import open_checkpoint
    from engine.weights.untrusted import model_files

    with model_files(Path(path).name):
        checkpoint = open_checkpoint(path)
        config = checkpoint.config
        if config.architecture not in bert.ARCHITECTURES:
            builder_of(config.architecture)
        ChatTokenizer.from_checkpoint(checkpoint)
    return f"{config.architecture}, {config.num_layers} layers, {config.max_position_embeddings} tokens"
