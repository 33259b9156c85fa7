"""`LLMEngine`: the same engine in the calling thread, for benchmarks and scripts. No thread, no asyncio."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.client import bad_word_ids, default_loader
from engine.config import EngineConfig
from engine.core import EngineCore, Submission
from engine.errors import EngineError
from engine.grammar import GrammarCompiler
from engine.ports import Loader, Progress, TokenizerPort
from engine.requests import (
    EngineSignals,
    EngineUsage,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    TokenLogprobs,
)
from engine.sampling import request_limits, validate
from engine.stats import EngineStats, StatsRecorder


@dataclass(slots=True)
class ChoiceResult:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    signals: EngineSignals | None = None
    token_times: list[float] = field(default_factory=list)
    """Seconds since `generate` was called, one per token."""


@dataclass(slots=True)
class GenerationResult:
    """Everything one request gave. `error` instead of a finish reason when it failed."""

    request_id: str
    choices: list[ChoiceResult]
    usage: EngineUsage | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: EngineError | None = None


def _no_progress(stage: str, percent: float) -> None:
    """Nobody is watching."""


class LLMEngine:
    """Loads in the constructor. Use from one thread; `close` when done."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        loader: Loader = default_loader,
        progress: Progress = _no_progress,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        config = replace(config, mixed_step_factor=0.0)
        self.config = config
        self._draw_seed = draw_seed
        self.model = loader(config, progress)
        self._recorder = StatsRecorder(max_model_len=self.model.runner.max_model_len)
        self.core = EngineCore(config, self.model, self._recorder)
        self._limits = request_limits(config, self.model.runner)
        self._compiler = GrammarCompiler(self.model.tokenizer)
        self._submitted = 0

    @property
    def tokenizer(self) -> TokenizerPort:
        return self.model.tokenizer

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Run all requests together to their end; results in the order of `requests`. Raises `InvalidInput`."""
        submissions = [self._submission(request) for request in requests]
        results = {
            r.request_id: GenerationResult(r.request_id, [ChoiceResult() for _ in range(r.sampling.n)])
            for r in requests
        }
        started = time.perf_counter()
        for submission in submissions:
            self.core.add(submission)
        while self.core.has_work:
            deliveries = self.core.step()
            elapsed = time.perf_counter() - started
            for delivery in deliveries:
                result = results.get(delivery.request_id)
                if result is None:
                    continue
                if isinstance(delivery.item, GenerationEvent):
                    _record(result, delivery.item, elapsed)
                elif isinstance(delivery.item, EngineError):
                    result.error = delivery.item
        self.core.completed.clear()
        self.core.culprits.clear()
        return [results[request.request_id] for request in requests]

    def stats(self) -> EngineStats:
        return self.core.stats(state="ready")

    def reset_stats(self) -> None:
        """Forget counters (after a warm-up); the cache stays."""
        self._recorder = self.core.recorder = StatsRecorder(max_model_len=self.model.runner.max_model_len)

    def close(self) -> None:
        self.model.runner.close()

    def _submission(self, request: GenerationRequest) -> Submission:
        sampling = request.sampling
        self._submitted += 1
        return Submission(
            request=request,
            max_tokens=validate(request, self._limits),
            seed=(self._draw_seed() if sampling.seed is None else sampling.seed) & (2**64 - 1),
            grammar=None if sampling.grammar is None else self._compiler.compile(sampling.grammar),
            bad_word_ids=bad_word_ids(self.model.tokenizer, sampling.bad_words),
            ticket=self._submitted,
        )


def _record(result: GenerationResult, event: GenerationEvent, elapsed_s: float) -> None:
    choice = result.choices[event.index]
    choice.text += event.text
    choice.token_ids.extend(event.token_ids)
    choice.logprobs.extend(event.logprobs)
    choice.token_times.extend(elapsed_s for _ in event.token_ids)
    if event.prompt_logprobs is not None:
        result.prompt_logprobs = event.prompt_logprobs
    if event.finish_reason is not None:
        choice.finish_reason, choice.stop_reason, choice.signals = event.finish_reason, event.stop_reason, event.signals
    if event.usage is not None:
        result.usage = event.usage
