"""`LLMEngine`: the same engine in the calling thread, for benchmarks and scripts. No thread, no asyncio."""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.config import EngineConfig
from engine.errors import DuplicateRequest, EngineError, EngineFault
from engine.metrics.stats import EngineStats, StatsRecorder
from engine.ports import Embedder, Loader, Progress, TokenizerPort
from engine.requests import (
    EngineSignals,
    EngineUsage,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    PromptScore,
    SamplingParams,
    TokenLogprobs,
)
from engine.sequence import Kind
from engine.serving.client import bad_word_ids, default_loader
from engine.serving.core import EngineCore, EngineOutput, Submission
from engine.serving.isolation import StepFailure
from engine.serving.validation import check_prompt, request_limits, validate
from engine.text.grammar import GrammarCompiler

_ENCODED_AT_ONCE = 64


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


Take = Callable[[EngineOutput], None]


def _no_progress(stage: str, percent: float) -> None:
    """Nobody is watching."""


def _nobody(result: GenerationResult) -> None:
    """Nobody counts."""


class LLMEngine:
    """Loads in the constructor. Use from one thread; `close` when done. `LLM` is the same for texts.

    There is one caller, so no request needs a cache salt, and prefill is not paced.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        loader: Loader = default_loader,
        progress: Progress = _no_progress,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        config = replace(config, mixed_step_factor=0.0, cache_salt_required=False)
        self.config = config
        self._draw_seed = draw_seed
        self.model = loader(config, progress)
        self._recorder = StatsRecorder(max_model_len=self.model.runner.max_model_len)
        self.core = EngineCore(config, self.model, self._recorder)
        self._limits = request_limits(config, self.model.runner, paged=self.model.embedder is None)
        self._compiler = GrammarCompiler(self.model.tokenizer)
        self._submitted = 0

    @property
    def tokenizer(self) -> TokenizerPort:
        return self.model.tokenizer

    def check(self, request: GenerationRequest) -> None:
        """Raises `InvalidInput` for what `generate` would refuse."""
        validate(request, self._limits)
        if request.sampling.grammar is not None:
            self._compiler.compile(request.sampling.grammar)

    def check_input(self, token_ids: tuple[int, ...]) -> None:
        """Raises `InvalidInput` for what `embed` would refuse."""
        check_prompt(token_ids, self._limits)

    def generate(
        self, requests: Sequence[GenerationRequest], *, done: Callable[[GenerationResult], None] = _nobody
    ) -> list[GenerationResult]:
        """Run any number of requests to their end; results in the order of `requests`, `done` as each ends.

        Raises `InvalidInput` before anything runs. Whatever is raised, nothing of the call stays in the engine.
        """
        submissions = [self._submission(request) for request in requests]
        results = {
            r.request_id: GenerationResult(r.request_id, [ChoiceResult() for _ in range(r.sampling.n)])
            for r in requests
        }
        started = time.perf_counter()

        def take(output: EngineOutput) -> None:
            result = results[output.request_id]
            if isinstance(output.item, GenerationEvent):
                _record(result, output.item, time.perf_counter() - started)
            elif isinstance(output.item, EngineError):
                result.error = output.item
            if output.last:
                done(result)

        self._run(submissions, take)
        return [results[request.request_id] for request in requests]

    def embed(
        self, token_id_lists: Sequence[Sequence[int]], *, done: Callable[[int], None] = lambda _: None
    ) -> list[tuple[float, ...] | EngineError]:
        """One vector of unit length per input, in order, or what went wrong with it. `done` is told how many ended.

        Raises `InvalidInput` before anything runs.
        """
        inputs = [tuple(ids) for ids in token_id_lists]
        for ids in inputs:
            check_prompt(ids, self._limits)
        if self.model.embedder is not None:
            return self._encoded(self.model.embedder, inputs, done)
        found: dict[str, tuple[float, ...] | EngineError] = {}

        def take(output: EngineOutput) -> None:
            if not isinstance(output.item, GenerationEvent | PromptScore):
                found[output.request_id] = output.item
            done(1)

        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        requests = [GenerationRequest(f"embed-{i}", ids, sampling) for i, ids in enumerate(inputs)]
        self._run([Submission(r, 1, 0, Kind.EMBED, ticket=i + 1) for i, r in enumerate(requests)], take)
        return [found[request.request_id] for request in requests]

    def stats(self) -> EngineStats:
        return self.core.stats(state="ready")

    def close(self) -> None:
        self.model.runner.close()

    def _encoded(
        self, embedder: Embedder, inputs: Sequence[tuple[int, ...]], done: Callable[[int], None]
    ) -> list[tuple[float, ...] | EngineError]:
        vectors: list[tuple[float, ...] | EngineError] = []
        for start in range(0, len(inputs), _ENCODED_AT_ONCE):
            part = inputs[start : start + _ENCODED_AT_ONCE]
            vectors.extend(tuple(vector) for vector in embedder.embed(part))
            done(len(part))
        return vectors

    def _run(self, submissions: Sequence[Submission], take: Take) -> None:
        """Feed the queue as it empties, so that no number of requests is too many."""
        ids = [submission.request.request_id for submission in submissions]
        twice = next((name for name, count in Counter(ids).items() if count > 1), None)
        if twice is not None:
            raise DuplicateRequest("request_id", twice, "is given twice")
        backlog, core = deque(submissions), self.core
        try:
            while backlog or core.has_work:
                while backlog and self._has_room(backlog[0]):
                    core.add(backlog.popleft())
                for output in core.step():
                    take(output)
        except StepFailure as failure:
            raise EngineFault("every step fails: the runner is broken", hint="load the model again") from failure
        finally:
            for request_id in ids:
                core.end(request_id, FinishReason.ABORT, "closed")
            core.settle()
            core.completed.clear()
            core.faulty_requests.clear()

    def _has_room(self, submission: Submission) -> bool:
        """With an empty queue, the core itself says what is wrong with a request that is too large for it."""
        waiting = len(self.core.scheduler.waiting)
        return not waiting or waiting + submission.request.sampling.n <= self.config.max_waiting

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
