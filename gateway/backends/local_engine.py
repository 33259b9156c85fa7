"""The in-process engine as a backend: what the gateway knows of `engine` is here and in `engine_values`.

Turns requests into the engine's values and its events into chunks, and its errors into the gateway's. Models load in
the background, one after the other, while the port already answers. Knows no users: the salt and the share it passes on
come from the verified identity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from gateway.backends.engine_answers import chatted, completed, id_tails
from gateway.backends.engine_dialog import prompt_of
from gateway.backends.engine_operations import EngineOperations
from gateway.backends.engine_values import (
    as_gateway_error,
    hints_of,
    require_bounded_evidence,
    sampling_of,
)
from gateway.backends.several_prompts import JoinedAnswer
from gateway.backends.token_counts import counted
from gateway.backends.vector_sizes import shortened
from gateway.errors import ConfigError, Unavailable
from gateway.flow.budget import prompt_too_long
from gateway.flow.parts import message_fields
from gateway.flow.values import (
    ChatCount,
    ChatRequest,
    Chunk,
    CompletionCount,
    CompletionRequest,
    EmbeddingRequest,
    GeneratingRequest,
    ModelCard,
    ModelRequest,
    Prepared,
    Prompt,
    SchedulingHints,
    Usage,
)
from gateway.settings import EngineSettings, ModelSettings

if TYPE_CHECKING:
    from engine import AsyncEngine

_log = logging.getLogger("esclusa.engine")


class LocalBackend:
    """Implements `flow.ports.Backend` for the local models. `start` returns at once, `wait` when all have loaded."""

    def __init__(self, models: tuple[ModelSettings, ...], settings: EngineSettings) -> None:
        """Raises `ConfigError` when the engine is not installed or a setting is wrong."""
        self._models = {model.id: model for model in models}
        self._engines: dict[str, AsyncEngine] = {
            model.id: make_engine(model, settings) for model in models if model.path is not None
        }
        self._stages: dict[str, tuple[str, float]] = dict.fromkeys(self._engines, ("waiting", 0.0))
        self._failed: dict[str, str] = {}
        self.operations = EngineOperations(self._engines, self._stage_of, engine_error())
        # A pool for each model: a template that takes its whole time holds up nobody who asks another model.
        self._tokenizing = {
            name: ThreadPoolExecutor(max_workers=2, thread_name_prefix="esclusa-tokenizer") for name in self._engines
        }
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loading = asyncio.create_task(self._load(), name="load models")

    async def wait(self) -> None:
        """Raises `ConfigError` for the first model that could not be loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)
        for name, reason in self._failed.items():
            raise ConfigError(
                f"model `{name}` cannot be loaded: {reason}", hint="esclusa doctor checks the model files"
            )

    async def aclose(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        self.operations.close()
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
        for pool in self._tokenizing.values():
            pool.shutdown(wait=False, cancel_futures=True)

    # --------------------------------------------------------------------------------------------- Backend

    async def prepare(self, request: ModelRequest, card: ModelCard) -> Prepared:
        """The payload is a `ChatPrompt`, or the token ids of each prompt or input."""
        engine = self._ready(card)
        tokenized = await self._run(card.id, _tokenized, engine.tokenizer, request, card)
        if isinstance(request, ChatCount | CompletionCount):
            prepared: Prepared = await self._run(card.id, counted, engine.tokenizer, request, tokenized)
            return prepared
        if isinstance(request, EmbeddingRequest):
            return Prepared(sum(map(len, tokenized)), tokenized)
        if isinstance(request, CompletionRequest):
            sizes = [len(one) for one in tokenized]
            require_bounded_evidence(request.params, sum(sizes))
            return Prepared(sum(sizes), tokenized, longest_prompt=max(sizes))
        size = len(tokenized.token_ids)
        require_bounded_evidence(request.params, size)
        return Prepared(size, tokenized)

    def generate(
        self,
        request: GeneratingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        request_id: str,
        max_output_tokens: int,
        tenant_salt: bytes,
        scheduling: SchedulingHints,
    ) -> AsyncIterator[Chunk]:
        from engine import GenerationRequest

        engine = self._ready(card)
        sampling = sampling_of(request.params, max_output_tokens, self._models[card.id], engine.sampling_defaults)
        asked = GenerationRequest(request_id, (), sampling, cache_salt=tenant_salt, scheduling=hints_of(scheduling))
        if isinstance(request, ChatRequest):
            return chatted(engine, request, asked, prepared.payload)
        answers = [
            completed(engine, request, replace(asked, request_id=f"{request_id}{tail}", prompt_token_ids=ids), prompt)
            for prompt, ids, tail in zip(
                request.prompts, prepared.payload, id_tails(len(prepared.payload)), strict=True
            )
        ]
        return answers[0] if len(answers) == 1 else JoinedAnswer(answers, request.params.n)

    async def embed(
        self,
        request: EmbeddingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        scheduling: SchedulingHints,
    ) -> tuple[tuple[tuple[float, ...], ...], Usage]:
        from engine import EngineError

        engine = self._ready(card)
        ids = prepared.payload
        try:
            vectors = await engine.embed(ids, scheduling=hints_of(scheduling))
        except EngineError as error:
            raise as_gateway_error(error, prompt_param="input") from None
        return shortened(vectors, request.dimensions, card), Usage(prompt_tokens=sum(len(one) for one in ids))

    def status(self) -> Mapping[str, object]:
        """After the load: `degraded` while some engine takes no requests, `stopped`, `stalled` (in a step that does not
        return) or `failed` when none does."""
        for name, (stage, percent) in self._stages.items():
            if name in self._failed:
                return {"state": "failed", "stage": f"{name}: failed", "percent": 0.0}
            if stage != "ready":
                return {"state": "loading", "stage": f"{name}: {stage}", "percent": percent}
        states = {name: self.operations.state(name) for name in self._engines}
        idle = {name: state for name, state in states.items() if state not in ("ready", "rebuilding")}
        if not idle:
            return {"state": "ready", "stage": "ready", "percent": 100.0}
        if len(idle) < len(states):
            return {"state": "degraded", "stage": "ready", "percent": 100.0}
        name, state = next(iter(idle.items()))
        shown = state if state in ("failed", "stalled") else "stopped"
        return {"state": shown, "stage": f"{name}: {state}", "percent": 0.0}

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """vLLM's metric names, one set of labels per model."""
        from engine import EngineCollector

        collector = EngineCollector(registry)
        for name, engine in self._engines.items():
            collector.add(name, engine.config, engine.stats)

    # --------------------------------------------------------------------------------------------- private

    async def _load(self) -> None:
        from engine import EngineError

        for name, engine in self._engines.items():

            def report(stage: str, percent: float, name: str = name) -> None:
                # Of the first load only: weights are read again by a rebuild and after a sleep.
                if self._stages[name][0] != "ready":
                    self._stages[name] = (stage, percent)

            try:
                await engine.start(report)
            except (EngineError, OSError, MemoryError) as error:
                self._failed[name] = str(error)
                _log.error("model %s cannot be loaded: %s", name, error)
            else:
                self._stages[name] = ("ready", 100.0)
                _log.info("model %s is ready", name)

    def _ready(self, card: ModelCard) -> AsyncEngine:
        engine = self._engines.get(card.id)
        stage, percent = self._stages.get(card.id, ("missing", 0.0))
        if engine is None or card.id in self._failed:
            raise Unavailable("The engine of this model is not running.", code="engine_unavailable")
        if stage != "ready":
            raise Unavailable(
                f"The model is loading: {stage} ({percent:.0f} %).",
                code="model_loading",
                hint="wait for 200 at /readyz",
            )
        self.operations.require_accepting(card.id)
        return engine

    def _stage_of(self, model: str) -> tuple[str, float]:
        return ("failed", 0.0) if model in self._failed else self._stages[model]

    async def _run(self, model: str, work: Callable[..., Any], *arguments: Any) -> Any:
        from engine import EngineError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizing[model], work, *arguments)
        except EngineError as error:
            raise as_gateway_error(error) from None


def model_problem(path: str) -> tuple[str, str]:
    """(what the files hold, what is wrong with them or "" when nothing is), read without loading the weights."""
    from engine import EngineError, check_model

    try:
        return check_model(path), ""
    except EngineError as error:
        return "", error.message + (f" ({error.hint})" if error.hint else "")


def make_engine(model: ModelSettings, settings: EngineSettings) -> AsyncEngine:
    try:
        from engine import AsyncEngine, EngineConfig, EngineError
    except ImportError as error:
        raise ConfigError(
            f"model `{model.id}` needs the engine, which is not installed ({error.name} is missing)",
            hint="pip install 'esclusa[engine]'",
        ) from None
    try:
        config = EngineConfig(
            model=str(model.path),
            model_sha256=model.sha256,
            served_model_name=model.id,
            dtype=model.dtype,
            device=settings.device,
            quantization=model.quantization,
            block_size=settings.block_size,
            kv_cache_bytes=settings.kv_cache_bytes,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            kv_cache_dtype=settings.kv_cache_dtype,
            kernel_manifest=None if model.kernel_manifest is None else str(model.kernel_manifest),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len or model.context_window,
            enable_prefix_caching=settings.enable_prefix_caching,
            scheduling_policy=settings.scheduling_policy,
            max_seqs_per_share=settings.max_seqs_per_share,
            max_blocks_per_share=settings.max_blocks_per_share,
            starvation_bound_s=settings.starvation_bound_s,
            max_waiting=settings.max_waiting,
            pooling=settings.pooling,
            tensor_parallel_size=settings.tensor_parallel_size,
            threads=settings.threads,
            deterministic=settings.deterministic,
            generation_config=settings.generation_config,
            tool_call_parser=model.tool_call_parser,
            reasoning_parser=model.reasoning_parser,
        )
    except EngineError as error:
        raise ConfigError(f"engine settings of model `{model.id}`: {error}") from None
    return AsyncEngine(config, watchdog_s=settings.watchdog_s)


def engine_error() -> type[Exception]:
    from engine import EngineError

    return EngineError


def _tokenized(tokenizer: Any, request: ModelRequest, card: ModelCard) -> Any:
    """The ids of the prompt, or of each input of an embedding. Raises `ContextLengthExceeded`, for no more work than a
    text that fits."""
    from engine import TextTooLong

    most = card.context_window
    try:
        match request:
            case EmbeddingRequest(inputs=inputs):
                return [_ids(tokenizer, one, most) for one in inputs]
            case ChatRequest(messages=turns):
                messages = [{"role": _role(turn.role), **message_fields(turn.content)} for turn in turns]
                return prompt_of(tokenizer, request, messages, most)
            case CompletionCount(prompts=(str() as text,), adds_special_tokens=False):
                return [tuple(tokenizer.encode(text, most=most))]
            case CompletionRequest(prompts=prompts):
                return [_ids(tokenizer, prompt, most) for prompt in prompts]
    except TextTooLong as error:
        raise prompt_too_long(request, card, f"at least {error.least}") from None


def _ids(tokenizer: Any, prompt: Prompt, most: int) -> tuple[int, ...]:
    return tuple(tokenizer.encode(prompt, add_special_tokens=True, most=most)) if isinstance(prompt, str) else prompt


def _role(role: str) -> str:
    """`developer` is the newer name of `system`; chat templates know the older one."""
    return "system" if role == "developer" else role
