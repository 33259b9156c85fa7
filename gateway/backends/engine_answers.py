"""Answers of the in-process engine: one generation as chunks, and what a chat or a completion makes of it.

Part of the local backend; imports the engine only when it is used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.backends.best_of import BestOfAnswer
from gateway.backends.echo import EchoedAnswer
from gateway.backends.engine_dialog import ChatPrompt, ParsedAnswer
from gateway.backends.engine_values import as_chunks, as_delta, as_gateway_error, computed_by
from gateway.flow.values import ChatRequest, Chunk, CompletionRequest, GeneratingRequest, Prompt, Usage

if TYPE_CHECKING:
    from engine import AsyncEngine, GenerationRequest


class EngineAnswer:
    """One generation as chunks. Submitted when it is made; closing it aborts within a step."""

    def __init__(self, engine: AsyncEngine, request: GeneratingRequest, asked: GenerationRequest) -> None:
        from engine import EngineError

        self._engine, self._request = engine, request
        self._stream: Any = None
        self._refused: EngineError | None = None
        self._ready: deque[Chunk] = deque()
        """The rest of an event that says more than one thing."""
        self._hidden = engine.tokenizer.special_token_ids if request.params.skip_special_tokens else frozenset[int]()
        try:
            self._stream = engine.generate(asked)
        except EngineError as error:
            self._refused = error  # told by the first read, after the intent was recorded

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        from engine import EngineError

        if self._ready:
            return self._ready.popleft()
        try:
            if self._refused is not None:
                raise self._refused
            event = await anext(self._stream)
        except EngineError as error:
            raise as_gateway_error(error, self._request.params.grammar_param) from None
        engine = self._engine
        if event.finish_reason is None and event.prompt_logprobs is None:
            return as_delta(event, engine.tokenizer, self._hidden)
        chunks = partial(as_chunks, event, computed_by(engine), engine.tokenizer, self._hidden)
        # The log-probabilities of a long prompt are too many for the event loop.
        self._ready.extend(chunks() if event.prompt_logprobs is None else await asyncio.to_thread(chunks))
        return self._ready.popleft()

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    def used(self) -> Usage:
        """What the engine has spent on it so far; see `flow.metering.used_so_far`."""
        used = self._stream.used() if self._stream is not None else None
        if used is None:
            return Usage()
        return Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, source="engine")


def completed(
    engine: AsyncEngine, request: CompletionRequest, asked: GenerationRequest, prompt: Prompt
) -> EngineAnswer | BestOfAnswer | EchoedAnswer:
    """The answer to one prompt of a completion."""
    params = request.params
    answer: EngineAnswer | BestOfAnswer = EngineAnswer(engine, request, asked)
    if params.best_of > params.n:
        answer = BestOfAnswer(answer, params.n)
    if not params.echo:
        return answer
    return EchoedAnswer(answer, prompt, params, asked.prompt_token_ids, engine.tokenizer)


def chatted(
    engine: AsyncEngine, request: ChatRequest, asked: GenerationRequest, prompt: ChatPrompt
) -> AsyncIterator[Chunk]:
    """The answer to a chat. Its text is read only where it may hold more than text."""
    sampling = asked.sampling if prompt.grammar is None else replace(asked.sampling, grammar=prompt.grammar)
    asked = replace(asked, prompt_token_ids=prompt.token_ids, sampling=sampling)
    offered = () if request.tool_choice.mode == "none" else tuple([tool.name for tool in request.tools])
    constrained = sampling.grammar is not None and prompt.grammar is None

    def parser() -> Any:
        return engine.tokenizer.answer_parser(asked.prompt_token_ids, tools=offered, constrained=constrained)

    if parser() is None:
        return EngineAnswer(engine, request, asked)
    shown = engine.tokenizer.mark_token_ids
    asked = replace(asked, sampling=replace(sampling, shown_token_ids=shown))
    return ParsedAnswer(
        EngineAnswer(engine, request, asked),
        parser,
        one_call=not request.parallel_tool_calls,
        calls_only=bool(request.tools) and request.tool_choice.mode in ("required", "named"),
    )


def id_tails(prompts: int) -> list[str]:
    """What tells the engine's requests for one request apart."""
    return [""] if prompts == 1 else [f"-{index}" for index in range(prompts)]
