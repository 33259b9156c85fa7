"""Checks that a model's files can be read, without loading its weights: for `esclusa doctor`.

Opens the checkpoint, builds the tokenizer and compiles the chat template as the loader does.
"""

from __future__ import annotations

from pathlib import Path


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
