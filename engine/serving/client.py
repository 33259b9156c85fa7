"""`AsyncEngine`: the engine's face for asyncio. Validates, compiles, submits; hands deliveries to their streams.

Owns no scheduling. One hand-off per step comes from the engine thread (`call_soon_threadsafe`), and each delivery goes
to its stream in O(1). Imports no torch; the product's loader is imported when the engine starts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

from engine.config import EngineConfig
from engine.errors import DuplicateRequest, EngineError, EngineFault, EngineUnavailable, InvalidInput
from engine.metrics.stats import EngineStats
from engine.ports import Embedder, LoadedModel, Loader, Progress, TokenizerPort
from engine.requests import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    PromptScore,
    SamplingParams,
    SchedulingHints,
)
from engine.sequence import Consumption, Kind
from engine.serving.core import EngineOutput, Submission
from engine.serving.grammar_queue import CompilingRequests
from engine.serving.loop import EngineState, EngineThread
from engine.serving.stream import ELSEWHERE, GenerationStream, OpenStreams
from engine.serving.validation import RequestLimits, check_prompt, request_limits, validate
from engine.serving.watchdog import Watchdog
from engine.text.grammar import GrammarCompiler

log = logging.getLogger(__name__)

NO_HINTS = SchedulingHints()
_ACCEPTING = (EngineState.READY, EngineState.PAUSED, EngineState.REBUILDING)
"""While rebuilding, requests wait in the command queue; they are refused if the rebuild fails."""


def default_loader(config: EngineConfig, progress: Progress) -> LoadedModel:
    """The product's loader; imports torch."""
    from engine.execution.runner import load_model

    return load_model(config, progress)


class AsyncEngine:
    """One model behind one step loop. Use from one event loop, except `abort` and `stop`, which are thread-safe.

    `loader` builds runner and tokenizer in the engine thread (fakes in tests). `draw_seed` gives 64-bit seeds to
    requests without one. A step longer than `watchdog_s` is reported, its waiters are told and new requests refused
    until it returns. `close` waits at most `close_timeout_s` for a thread that does not react, and leaves it behind.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        loader: Loader | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
        grammar_timeout_s: float = 5.0,
        watchdog_s: float = 120.0,
        close_timeout_s: float = 10.0,
    ) -> None:
        self.config = config
        self._loader = loader or default_loader
        self._clock, self._draw_seed = clock, draw_seed
        self._streams = OpenStreams(self.abort)
        self._tickets = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: EngineThread | None = None
        self._compiler: GrammarCompiler | None = None
        self._compiling = CompilingRequests(grammar_timeout_s, self._submit_compiled, self._streams.dispatch)
        self.watchdog_s, self._close_timeout_s = watchdog_s, close_timeout_s
        self._watchdog = Watchdog(watchdog_s, clock, self._streams.end_all, self._streams.end_overdue)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, progress: Progress | None = None) -> None:
        """Load the model in the engine thread. `progress(stage, percent)` is called on the event loop.

        Raises what the loader raises (`UnsupportedModel`, `WeightsMismatch`, ...).
        """
        loop = asyncio.get_running_loop()
        self._loop = loop

        def report(stage: str, percent: float) -> None:
            if progress is not None:
                _call_soon(loop, progress, stage, percent)

        self._thread = EngineThread(self.config, self._loader, self._deliver, progress=report, clock=self._clock)
        await asyncio.wrap_future(self._thread.start())
        self._compiler = GrammarCompiler(self._model.tokenizer)
        self._watchdog.watch(self._thread)

    async def close(self) -> None:
        """End everything with `EngineUnavailable` and stop the thread. Idempotent, and over in bounded time: a thread
        that does not come back is left behind (it is a daemon), and its waiters are told."""
        self._watchdog.stop()
        self._compiling.close()
        if self._thread is None:
            return
        stopping = asyncio.wrap_future(self._thread.close())
        done, _ = await asyncio.wait({stopping}, timeout=self._close_timeout_s)
        if done:
            with suppress(EngineUnavailable):
                stopping.result()
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 30.0)
        else:
            log.error("the engine thread does not react and is left behind", extra={"after_s": self._close_timeout_s})
            self._streams.end_all("the engine is stopped")

    async def drain(self) -> None:
        """Refuse new requests and return when the last one has ended."""
        await self._act(self._running_thread.drain())

    async def pause(self) -> None:
        await self._act(self._running_thread.pause())

    async def resume(self) -> None:
        await self._act(self._running_thread.resume())

    async def sleep(self) -> None:
        """Drain, release the weights, forget the cache. `wake` brings the engine back."""
        await self._act(self._running_thread.sleep())

    async def wake(self) -> None:
        await self._act(self._running_thread.wake())

    async def clear_poison(self) -> None:
        """Forget which requests have broken steps, so that they run again."""
        await self._act(self._running_thread.clear_poison())

    # -- work --------------------------------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> GenerationStream:
        """Start at once and stream. Closing the iterator aborts; its KV blocks are free one step later.

        Raises here: `InvalidInput` and its kinds, `DuplicateRequest`, `EngineUnavailable`. Raises from the iterator:
        `InvalidGrammar`, `EngineOverloaded`, `EngineFault`, `PoisonRequest`, `EngineUnavailable`.
        """
        submission = Submission(
            request=request,
            max_tokens=validate(request, self._limits()),
            seed=self._seed_of(request),
            bad_word_ids=self._bad_words(request.sampling),
            fingerprint=_fingerprint(request),
        )
        return self._submit(submission)

    async def score(self, request: GenerationRequest, *, likelihood: bool = True) -> PromptScore:
        """Prefill once and leave the KV cached for a following `generate` of the same prompt and salt.

        With `likelihood` every prompt position is computed and `prompt_mean_logprob` given; without it cached blocks
        are used and it is None. The sampling parameters are ignored. Raises as `generate`.
        """
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        request = replace(request, sampling=sampling)
        validate(request, self._limits())
        submission = Submission(request, 1, 0, Kind.SCORE, likelihood=likelihood, fingerprint=_fingerprint(request))
        stream = self._submit(submission)
        item = await stream.next_item()
        if not isinstance(item, PromptScore):
            raise EngineUnavailable("the score was aborted")
        return item

    async def embed(
        self,
        token_id_lists: Sequence[Sequence[int]],
        *,
        request_id: str = "embed",
        scheduling: SchedulingHints = NO_HINTS,
    ) -> list[tuple[float, ...]]:
        """One vector of unit length per input, in order. Raises as `generate`; all inputs are checked first."""
        inputs = [tuple(ids) for ids in token_id_lists]
        for ids in inputs:
            check_prompt(ids, self._limits())
        embedder = self._model.embedder
        if embedder is not None:
            return await self._encode(embedder, inputs, request_id, scheduling.deadline_s)
        streams = []
        for index, ids in enumerate(inputs):
            request = GenerationRequest(
                request_id=f"{request_id}/{next(self._tickets)}/{index}",
                prompt_token_ids=ids,
                sampling=SamplingParams(max_tokens=1, temperature=0.0),
                scheduling=scheduling,
            )
            submission = Submission(request, 1, 0, Kind.EMBED, fingerprint=_fingerprint(request))
            streams.append(self._submit(submission))
        try:
            items = [await stream.next_item() for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        if any(item is None or isinstance(item, GenerationEvent) for item in items):
            raise EngineUnavailable("the embedding was aborted")
        return items

    def abort(self, request_id: str, reason: str = "abort") -> None:
        """End a request in any state with finish_reason `abort`. Idempotent; unknown ids are fine. Thread-safe."""
        self._end(request_id, FinishReason.ABORT, reason)

    def stop(self, request_id: str, reason: str, *, finish_reason: FinishReason = FinishReason.STOP) -> None:
        """End a running request in good order with `reason` as its stop reason. Idempotent. Thread-safe."""
        self._end(request_id, finish_reason, reason)

    def _end(self, request_id: str, finish: FinishReason, reason: str) -> None:
        """A request whose grammar compiles is not in the engine thread yet; only the event loop may touch it."""
        if self._thread is None:
            return
        if self._loop is not None and self._compiling.holds(request_id):
            _call_soon(self._loop, self._end_compiling, request_id, finish, reason)
        else:
            self._thread.end(request_id, finish, reason)

    def _end_compiling(self, request_id: str, finish: FinishReason, reason: str) -> None:
        if not self._compiling.end(request_id, finish, reason):
            self._running_thread.end(request_id, finish, reason)

    # -- looking in --------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Any thread, no waiting; before `start` a snapshot in state `loading`."""
        if self._thread is None:
            return EngineStats()
        return replace(self._thread.stats(), stalled_s=self._watchdog.stalled_s)

    @property
    def stalled_s(self) -> float:
        """How far the present step is beyond `watchdog_s`; 0 when all is well."""
        return self._watchdog.stalled_s

    @property
    def state(self) -> EngineState:
        return EngineState.LOADING if self._thread is None else self._thread.state

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, with its chat template."""
        return self._model.tokenizer

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """The files' recommended sampling, by the names of `SamplingParams`; empty with `generation_config: vllm`."""
        return self._model.sampling_defaults if self.config.generation_config == "auto" else {}

    @property
    def max_model_len(self) -> int:
        """Prompt and answer together, in tokens: the model's window or what the KV pool holds."""
        return self._limits().window

    @property
    def model_sha256(self) -> str:
        return self._model.model_sha256

    @property
    def kernels_sha256(self) -> str:
        """Of the code that computes the answers: each op's back end and what it was compiled to."""
        return self._model.kernels_sha256

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _encode(
        self, embedder: Embedder, inputs: Sequence[Sequence[int]], request_id: str, deadline_s: float | None
    ) -> list[tuple[float, ...]]:
        """A sentence encoder has no steps; it runs in the engine thread, so that drain, sleep and close hold for it."""
        thread, loop = self._accepting_thread(), asyncio.get_running_loop()
        ticket = next(self._tickets)
        stream = self._streams.open(f"{request_id}/{ticket}", ticket, deadline_s, Consumption())
        vectors: list[tuple[float, ...]] = []

        def encode() -> None:
            if not stream.finished:
                vectors.extend(tuple(vector) for vector in embedder.embed(inputs))

        def encoded(done: Future[None]) -> None:
            error = done.exception()
            if error is not None and not isinstance(error, EngineError):
                log.error("encoding failed", exc_info=error, extra={"inputs": len(inputs)})
                error = EngineFault("a fault while these inputs were encoded")
            _call_soon(loop, stream.put, vectors if error is None else error, True)

        thread.between_steps(encode).add_done_callback(encoded)
        item = await stream.next_item()
        if item is None:
            raise EngineUnavailable("the embedding was aborted")
        return cast("list[tuple[float, ...]]", item)

    def _submit(self, submission: Submission) -> GenerationStream:
        thread, request_id = self._accepting_thread(), submission.request.request_id
        if self._streams.is_running(request_id):
            raise DuplicateRequest("request_id", request_id, "a request with this id is running")
        if self._model.embedder is not None:
            name = self.config.served_model_name or "this model"
            raise InvalidInput("model", name, "encodes sentences and generates no text", hint="ask for embeddings")
        grammar = submission.request.sampling.grammar if submission.kind is Kind.GENERATE else None
        if grammar is not None and self._compiler is None:
            raise EngineUnavailable("the engine is not loaded")
        consumption, deadline_s = Consumption(), submission.request.scheduling.deadline_s
        submission = replace(submission, ticket=next(self._tickets), consumption=consumption)
        stream = self._streams.open(request_id, submission.ticket, deadline_s, consumption)
        if grammar is None or self._compiler is None:
            thread.submit(submission)
        else:
            self._compiling.add(submission, grammar, self._compiler)
        return stream

    def _submit_compiled(self, submission: Submission) -> None:
        if self._streams.is_waited_for(submission.ticket):
            self._running_thread.submit(submission)

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        """Called by the engine thread, once per step."""
        if outputs and self._loop is not None:
            _call_soon(self._loop, self._streams.dispatch, outputs)

    def _seed_of(self, request: GenerationRequest) -> int:
        seed = request.sampling.seed
        return (self._draw_seed() if seed is None else seed) & (2**64 - 1)

    def _bad_words(self, sampling: SamplingParams) -> tuple[tuple[int, ...], ...]:
        return bad_word_ids(self._model.tokenizer, sampling.bad_words)

    def _limits(self) -> RequestLimits:
        return request_limits(self.config, self._model.runner, paged=self._model.embedder is None)

    def _accepting_thread(self) -> EngineThread:
        thread = self._running_thread
        if thread.state not in _ACCEPTING:
            raise EngineUnavailable(f"the engine is {thread.state.value}", hint="retry in a moment")
        if thread.recovering:
            raise EngineUnavailable("the engine keeps dying and is being rebuilt", hint=ELSEWHERE)
        if self._watchdog.stalled_s > 0:
            raise EngineUnavailable("the engine has stalled", hint=ELSEWHERE)
        return thread

    @property
    def _model(self) -> LoadedModel:
        thread = self._running_thread
        if thread.model is None:
            raise EngineUnavailable(f"the engine is {thread.state.value}")
        return thread.model

    @property
    def _running_thread(self) -> EngineThread:
        if self._thread is None:
            raise EngineUnavailable("the engine has not been started")
        return self._thread

    async def _act(self, future: Future[None]) -> None:
        await asyncio.wrap_future(future)


def bad_word_ids(tokenizer: TokenizerPort, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands and with a space before it, as tokens."""
    spellings = {tuple(tokenizer.encode(text)) for word in words for text in (word, f" {word.lstrip()}")}
    return tuple(sorted(ids for ids in spellings if ids))


def _fingerprint(request: GenerationRequest) -> bytes:
    """The same for every submission of the same work within one cache domain, whatever its id."""
    digest = sha256(request.cache_salt or b"")
    digest.update(repr(request.sampling).encode())
    digest.update(repr(request.prompt_token_ids).encode())
    return digest.digest()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    """The loop may have closed while the engine was still ending requests; nobody is left to tell then."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
