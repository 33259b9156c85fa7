"""Verifies a quantized checkpoint: every convention is tried on a text, every matrix packed again and multiplied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.errors import InvalidInput
from engine.verification.report import VerifyReport

Progress = Callable[[str, int, int], None]
"""Called with (the convention that is tried now, done, total)."""
BACKENDS = ("cpu", "reference")


def verify_model(path: str, progress: Progress, backend: str = "cpu") -> VerifyReport:
    """Read the checkpoint in every known way; `backend` multiplies.

    Raises InvalidInput for a checkpoint that is not stored quantized as safetensors, and what loading raises.
    """
    # Here, because they import torch: whoever imports `engine` for its requests and errors has no need of it.
    from engine.verification.trial import try_conventions
    from engine.weights.loader import open_checkpoint
    from engine.weights.untrusted import model_files
    from kernels import dispatch

    if backend not in BACKENDS:
        raise InvalidInput("backend", backend, f"must be one of {', '.join(BACKENDS)}")
    name = Path(path).name
    with model_files(name):
        checkpoint = open_checkpoint(path)
        if checkpoint.format is None:
            raise InvalidInput(
                "path",
                name,
                "the model is not stored as AWQ, GPTQ, compressed-tensors or FP8",
                hint="the codes of a GGUF file carry their layout in their type; `esclusa doctor` checks such a file",
            )
        ops = dispatch.load("reference" if backend == "reference" else "cpu", "cpu")
        return try_conventions(checkpoint, checkpoint.format, ops, backend, progress)
