"""Ports from the scheduling half to the numeric half besides `step.Runner`: a tokenizer, an embedder, a loader.

Protocols and one value only; no torch, no files. The product's loader is `engine.execution.runner.load_model`; tests
pass fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.step import Runner

Progress = Callable[[str, float], None]
"""Called with (stage, percent 0..100) while a model loads; from the loading thread."""


class TokenizerPort(Protocol):
    """The part of a tokenizer that the step loop and submission need. Safe to call from several threads."""

    vocab_size: int
    """Rows of the output head; ids at or above it are refused at submission."""
    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]
    """Left out of the text when `skip_special_tokens`."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, byte-fallback and byte-level alphabets undone; b"" for ids without text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Without special tokens added. Used for bad words."""
        ...

    def llguidance(self) -> Any:
        """The vocabulary as an `llguidance.LLTokenizer`, built on first use and kept."""
        ...


class Embedder(Protocol):
    """A sentence encoder (BERT family) that needs no paged cache."""

    def embed(self, token_id_lists: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector per input, in order."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model. `embedder` replaces the runner's pooling where the model is a pure encoder."""

    runner: Runner
    tokenizer: TokenizerPort
    model_sha256: str = ""
    embedder: Embedder | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """The makers' recommended sampling, by the names of `SamplingParams`."""
    kernels_sha256: str = ""
    """Of the code that computes the answers; see `kernels.identity`."""


Loader = Callable[[EngineConfig, Progress], LoadedModel]
"""Builds everything from the configuration. Called in the engine thread; again after a crash of the loop."""
