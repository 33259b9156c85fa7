"""`LLM`: texts in, texts out, in one call and in the calling thread, as vLLM's users know it.

No asyncio, so it works in a script and in a notebook alike. A request that cannot run has its error in its own output;
the others run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInput
from engine.ports import Loader
from engine.requests import EngineSignals, GenerationRequest, SamplingParams, TokenLogprobs
from engine.serving.client import default_loader
from engine.serving.offline import ChoiceResult, GenerationResult, LLMEngine

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's `{"prompt": text}` and `{"prompt_token_ids": ids}`."""
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: list[dict[int, TokenLogprob]] | None
    """Per token: the one that was drawn and the most likely ones, by id; None unless they were asked for."""
    finish_reason: str | None
    stop_reason: str | int | None
    signals: EngineSignals | None = None
    """The seed, entropies, times and preemptions of this choice."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its choices. With `error` there are no outputs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[dict[int, TokenLogprob] | None] | None = None
    num_cached_tokens: int = 0
    error: EngineError | None = None
    finished: bool = True


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    embedding: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """`outputs` is None where there is an `error`."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput | None
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    request_id: str
    outputs: ScoringOutput | None
    error: EngineError | None = None


class LLM:
    """Loads the model. Use from one thread, as a context manager or with `close`.

    `flags` are those of `EngineConfig`, under vLLM's names: `dtype`, `quantization`, `max_model_len`, `max_num_seqs`,
    `gpu_memory_utilization`, `enable_prefix_caching`, `seed`, ... Requests without a seed draw theirs from `seed`, so
    that a script gives the same answers each time.
    """

    def __init__(self, model: str | PathLike[str], *, loader: Loader = default_loader, **flags: Any) -> None:
        known = {item.name for item in fields(EngineConfig)}
        for name in flags:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise InvalidInput(
                    name, "a flag", "does not exist", hint=f"did you mean `{near[0]}`?" if near else None
                )
        config = EngineConfig(**{"scheduling_policy": "fcfs", **flags, "model": fspath(model)})
        self._engine = LLMEngine(config, loader=loader, draw_seed=_seeds(config.seed))
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.close()

    @property
    def llm_engine(self) -> LLMEngine:
        return self._engine

    def get_tokenizer(self) -> Any:
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model files' recommended sampling (`generation_config`); used where a call names none."""
        if self._engine.config.generation_config != "auto":
            return SamplingParams()
        # Each value was checked where it was read; only their common type, float, is wider than some of the fields.
        return SamplingParams(**self._engine.model.sampling_defaults)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One output per prompt, in their order. A list of parameters has one for each prompt."""
        texts = _listed(prompts)
        made: list[tuple[str | None, tuple[int, ...] | EngineError]] = [self._tokens(prompt) for prompt in texts]
        return self._run(made, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """One output per conversation: a list of messages is one, a list of lists are many."""
        conversations: Any = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        made: list[tuple[str | None, tuple[int, ...] | EngineError]] = []
        for conversation in conversations:
            try:
                ids = self.get_tokenizer().apply_chat_template(conversation, add_generation_prompt)
                made.append((None, tuple(ids)))
            except EngineError as error:
                made.append((None, error))
        return self._run(made, sampling_params, use_tqdm)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True) -> list[EmbeddingRequestOutput]:
        """One vector of unit length per prompt, in their order."""
        made = [self._embeddable(prompt) for prompt in _listed(prompts)]
        numbers = [self._next_id() for _ in made]
        inputs = [ids for ids in made if not isinstance(ids, EngineError)]
        with progress_bar(len(inputs), "Embedding", show=use_tqdm) as advance:
            vectors = iter(self._engine.embed(inputs, done=advance))
        outputs = []
        for number, ids in zip(numbers, made, strict=True):
            if isinstance(ids, EngineError):
                outputs.append(EmbeddingRequestOutput(number, (), None, ids))
                continue
            found = next(vectors)
            if isinstance(found, EngineError):
                outputs.append(EmbeddingRequestOutput(number, (), None, found))
            else:
                outputs.append(EmbeddingRequestOutput(number, ids, EmbeddingOutput(found)))
        return outputs

    def score(
        self, text_1: Prompt | Sequence[Prompt], text_2: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[ScoringRequestOutput]:
        """The cosine similarity of each pair: one text with many, or as many with as many."""
        left, right = _listed(text_1), _listed(text_2)
        if len(left) not in (1, len(right)):
            raise InvalidInput("text_1", len(left), f"must be one text, or as many as `text_2` has ({len(right)})")
        embedded = self.embed([*left, *right], use_tqdm=use_tqdm)
        first, second = embedded[: len(left)], embedded[len(left) :]
        return [
            _scored(self._next_id(), first[0] if len(left) == 1 else first[index], other)
            for index, other in enumerate(second)
        ]

    def _run(
        self,
        prompts: Sequence[tuple[str | None, tuple[int, ...] | EngineError]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        chosen = sampling_params if sampling_params is not None else self.get_default_sampling_params()
        params = [chosen] * len(prompts) if isinstance(chosen, SamplingParams) else list(chosen)
        if len(params) != len(prompts):
            raise InvalidInput("sampling_params", len(params), f"must be one, or one for each prompt ({len(prompts)})")
        refused: dict[int, EngineError] = {}
        requests: dict[int, GenerationRequest] = {}
        for index, ((_, ids), sampling) in enumerate(zip(prompts, params, strict=True)):
            if isinstance(ids, EngineError):
                refused[index] = ids
                continue
            request = GenerationRequest(self._next_id(), ids, sampling)
            try:
                self._engine.check(request)
            except InvalidInput as error:
                refused[index] = error
            else:
                requests[index] = request
        with progress_bar(len(requests), "Generating", show=use_tqdm) as advance:
            results = self._engine.generate(list(requests.values()), done=lambda _: advance(1))
        by_index = dict(zip(requests, results, strict=True))
        outputs = []
        for index, (text, ids) in enumerate(prompts):
            if index in refused:
                known = () if isinstance(ids, EngineError) else ids
                outputs.append(RequestOutput(self._next_id(), text, known, error=refused[index]))
            else:
                outputs.append(_output(by_index[index], text, requests[index]))
        return outputs

    def _tokens(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...] | EngineError]:
        given: Any = prompt
        if isinstance(prompt, Mapping):
            given = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        if not isinstance(given, str):
            return None, tuple(given)
        try:
            return given, tuple(self.get_tokenizer().encode(given, add_special_tokens=True))
        except EngineError as error:
            return given, error

    def _embeddable(self, prompt: Prompt) -> tuple[int, ...] | EngineError:
        _, ids = self._tokens(prompt)
        if isinstance(ids, EngineError):
            return ids
        try:
            self._engine.check_input(ids)
        except InvalidInput as error:
            return error
        return ids

    def _next_id(self) -> str:
        self._count += 1
        return str(self._count - 1)


def _listed(prompts: Any) -> list[Prompt]:
    """One prompt is a list of one; a list of numbers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


def _seeds(seed: int) -> Any:
    drawn = random.Random(seed)
    return lambda: drawn.getrandbits(64)


def _output(result: GenerationResult, text: str | None, request: GenerationRequest) -> RequestOutput:
    failed = result.error is not None
    wanted = request.sampling.logprobs is not None
    prompt_logprobs = result.prompt_logprobs
    return RequestOutput(
        request_id=result.request_id,
        prompt=text,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[] if failed else [_completion(i, c, wanted) for i, c in enumerate(result.choices)],
        prompt_logprobs=None
        if prompt_logprobs is None
        else [None if entry is None else _by_id(entry) for entry in prompt_logprobs],
        num_cached_tokens=result.usage.cached_tokens if result.usage is not None else 0,
        error=result.error,
    )


def _completion(index: int, choice: ChoiceResult, with_logprobs: bool) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text=choice.text,
        token_ids=tuple(choice.token_ids),
        cumulative_logprob=sum(entry.logprob for entry in choice.logprobs) if with_logprobs else None,
        logprobs=[_by_id(entry) for entry in choice.logprobs] if with_logprobs else None,
        finish_reason=None if choice.finish_reason is None else str(choice.finish_reason),
        stop_reason=choice.stop_reason,
        signals=choice.signals,
    )


def _by_id(entry: TokenLogprobs) -> dict[int, TokenLogprob]:
    found = {top.token_id: TokenLogprob(top.logprob, top.rank, top.text) for top in entry.top}
    return {entry.token_id: TokenLogprob(entry.logprob, entry.rank, entry.text), **found}


def _scored(request_id: str, left: EmbeddingRequestOutput, right: EmbeddingRequestOutput) -> ScoringRequestOutput:
    if left.outputs is None or right.outputs is None:
        return ScoringRequestOutput(request_id, None, left.error or right.error)
    pairs = zip(left.outputs.embedding, right.outputs.embedding, strict=True)
    return ScoringRequestOutput(request_id, ScoringOutput(sum(a * b for a, b in pairs)))


@contextmanager
def progress_bar(total: int, what: str, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that advances the bar."""
    if not show or total == 0:
        yield lambda _: None
        return
    try:
        tqdm = import_module("tqdm.auto").tqdm
    except ImportError:
        with _rich_bar(total, what) as advance:
            yield advance
        return
    with tqdm(total=total, desc=what, dynamic_ncols=True) as bar:
        yield lambda count: _ignore(bar.update(count))


def _ignore(_: object) -> None:
    """tqdm tells whether it has drawn."""


@contextmanager
def _rich_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
