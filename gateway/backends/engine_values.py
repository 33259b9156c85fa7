"""Translation at the engine's border: parameters in, events and errors out. Pure; part of the local backend.

Events are read by attribute and errors by their public code, so that this module runs without the engine installed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    Unavailable,
    UpstreamFailed,
)
from gateway.flow.values import (
    ChoiceEnd,
    Chunk,
    GenerationParams,
    PromptLogprobs,
    SchedulingHints,
    Signals,
    TextDelta,
    TokenLogprob,
    Usage,
    UsageReport,
)
from gateway.settings import ModelSettings

FINISH = {"stop": "stop", "length": "length", "deadline": "length", "abort": "abort", "error": "abort"}
MOST_PROMPT_LOGPROBS = 65_536
"""Of one answer, alternatives included. Twice as many hold the interpreter for more than the promised 50 ms."""


def sampling_of(
    params: GenerationParams, max_output_tokens: int, defaults: ModelSettings, recommended: Mapping[str, float]
) -> Any:
    """The engine's `SamplingParams`. What the caller left open comes from the model's settings, then from what the
    model's own files recommend."""
    from engine import Grammar, SamplingParams

    grammar = None
    if params.grammar is not None:
        grammar = Grammar(type=params.grammar["type"], value=params.grammar["value"])
    return SamplingParams(
        max_tokens=max_output_tokens,
        min_tokens=min(params.min_tokens, max_output_tokens),
        temperature=_first(params.temperature, defaults.temperature, recommended.get("temperature"), 1.0),
        top_p=_first(params.top_p, defaults.top_p, recommended.get("top_p"), 1.0),
        top_k=int(_first(params.top_k, defaults.top_k, recommended.get("top_k"), 0)),
        min_p=_first(params.min_p, defaults.min_p, recommended.get("min_p"), 0.0),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=_first(
            params.repetition_penalty, defaults.repetition_penalty, recommended.get("repetition_penalty"), 1.0
        ),
        logit_bias=params.logit_bias,
        seed=params.seed,
        n=max(params.n, params.best_of),
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        ignore_eos=params.ignore_eos,
        bad_words=params.bad_words,
        allowed_token_ids=params.allowed_token_ids,
        logprobs=params.top_logprobs if params.logprobs else None,
        prompt_logprobs=_prompt_logprobs(params),
        grammar=grammar,
        stop_on_repetition=params.stop_on_repetition or defaults.stop_on_repetition,
    )


def hints_of(scheduling: SchedulingHints) -> Any:
    """The engine's value of the same name."""
    from engine import SchedulingHints as EngineHints

    return EngineHints(scheduling.share_key, scheduling.share_weight, scheduling.priority, scheduling.deadline_s)


def _prompt_logprobs(params: GenerationParams) -> int | None:
    """The alternatives of a prompt token that are needed. An echo with log-probabilities has them for the prompt too,
    and one without an answer is, to the engine, a request for them."""
    asked = [] if params.prompt_logprobs is None else [params.prompt_logprobs]
    if params.echo and params.logprobs:
        asked.append(params.top_logprobs)
    elif params.echo and params.max_tokens == 0:
        asked.append(0)
    return max(asked, default=None)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def require_bounded_evidence(params: GenerationParams, prompt_tokens: int) -> None:
    """Raises `InvalidRequest` for more log-probabilities of a prompt than one answer holds."""
    alternatives = _prompt_logprobs(params)
    if alternatives is None:
        return
    copies = max(params.n, params.best_of) if params.echo and params.logprobs else 1
    asked = prompt_tokens * (1 + alternatives) * copies
    if asked > MOST_PROMPT_LOGPROBS:
        param = "logprobs" if params.echo and params.logprobs else "prompt_logprobs"
        raise InvalidRequest(
            f"The prompt's log-probabilities would be {asked} values; {MOST_PROMPT_LOGPROBS} is the most.",
            code="too_many_values",
            param=param,
            hint=f"lower `{param}` or `n`, or shorten the prompt: it is tokens x (1 + alternatives) x choices",
        )


def as_delta(event: Any, tokenizer: Any, hidden: Collection[int] = ()) -> TextDelta:
    """What an event says of a choice's text. `hidden`: the tokens that the text leaves out."""
    logprobs = tuple([_token(entry, tokenizer, hidden) for entry in event.logprobs]) if event.logprobs else ()
    return TextDelta(event.index, event.text, event.token_ids, logprobs)


@dataclass(frozen=True, slots=True)
class Computed:
    """What computed an answer: the hashes of a model's files and of the kernels that run it."""

    model_sha256: str
    kernels_sha256: str


def computed_by(engine: Any) -> Computed:
    return Computed(engine.model_sha256, engine.kernels_sha256)


def as_chunks(event: Any, computed: Computed, tokenizer: Any, hidden: Collection[int] = ()) -> list[Chunk]:
    """All that an event says, the end of a choice last."""
    delta, found = as_delta(event, tokenizer, hidden), list[Chunk]()
    if event.prompt_logprobs is not None:
        entries = [None if entry is None else _token(entry, tokenizer) for entry in event.prompt_logprobs]
        found.append(PromptLogprobs(tuple(entries)))
    if (usage := event.usage) is not None:
        counted = Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, source="engine")
        found.append(UsageReport(counted))
    if event.finish_reason is None:
        return [*found, delta]
    reason = str(event.finish_reason)
    signals = None if event.signals is None else _signals(event.signals, computed)
    cause, matched = _stop_cause(reason, event.stop_reason), event.stop_reason if reason in ("stop", "length") else None
    return [*found, ChoiceEnd(delta, FINISH[reason], cause, signals, matched)]


def _stop_cause(reason: str, stop_reason: object) -> str | None:
    if reason == "deadline":
        return reason
    return "repetition" if reason == "length" and stop_reason == "repetition" else None


def _token(entry: Any, tokenizer: Any, hidden: Collection[int] = ()) -> TokenLogprob:
    return TokenLogprob(
        token=entry.text,
        token_id=entry.token_id,
        logprob=entry.logprob,
        token_bytes=tuple(tokenizer.token_bytes(entry.token_id)),
        top=tuple(
            TokenLogprob(
                token=top.text,
                token_id=top.token_id,
                logprob=top.logprob,
                token_bytes=tuple(tokenizer.token_bytes(top.token_id)),
            )
            for top in entry.top
        ),
        shown=b"" if entry.token_id in hidden else None,
    )


def _signals(signals: Any, computed: Computed) -> Signals:
    entropies = signals.first_entropies
    return Signals(
        mean_logprob=signals.mean_logprob,
        min_logprob=signals.min_logprob,
        first_entropy=entropies[0] if entropies else None,
        repetition=signals.repetition,
        queue_s=signals.queue_s,
        prefill_s=signals.prefill_s,
        decode_s=signals.decode_s,
        cached_tokens=signals.cached_tokens,
        preemptions=signals.preemptions,
        model_sha256=computed.model_sha256,
        kernels_sha256=computed.kernels_sha256 or None,
    )


GRAMMAR_NAMES = {
    "json_schema": "schema",
    "json_object": "schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "grammar": "grammar",
    "tool_calls": "schema of a tool",
}


def as_gateway_error(error: Any, grammar_param: str | None = None, *, prompt_param: str = "prompt") -> GatewayError:
    """An `EngineError` as the caller sees it. `grammar_param` and `prompt_param`: the fields that the constraint of the
    answer and the prompt came in."""
    code = str(error.code)
    if code == "context_length_exceeded":
        window, prompt, output = error.max_model_len, error.prompt_tokens, error.max_tokens
        told = (
            f"you requested {prompt + output} tokens ({prompt} in the prompt, {output} in the completion)"
            if error.fits
            else f"your {prompt_param} has {prompt} tokens ({prompt_param} is too long)"
        )
        return ContextLengthExceeded(
            f"This model's maximum context length is {window} tokens. However, {told}.",
            param="max_tokens" if error.fits else prompt_param,
            hint=error.hint,
        )
    if code == "invalid_grammar":
        if error.field.startswith("tools."):
            return InvalidRequest(
                f"The schema of a tool cannot be followed: it {error.limit}.",
                code=code,
                param=error.field,
                hint="change that schema, or do without `strict` and `tool_choice`",
                detail=error.detail or None,
            )
        name = GRAMMAR_NAMES.get(error.field.removeprefix("grammar."), "grammar")
        return InvalidRequest(
            f"The {name} cannot be compiled: it {error.limit}.",
            code=code,
            param="tools" if error.field == "grammar.tool_calls" else grammar_param or "response_format",
            hint=error.hint,
            detail=error.detail or None,
        )
    if code == "invalid_value":
        numeric = isinstance(error.value, int | float)
        message = error.message if numeric else f"`{error.field}`: {error.limit}"
        param = grammar_param if error.field.startswith("grammar.") else error.field
        param = prompt_param if error.field in ("prompt", "prompt_token_ids") else param
        return InvalidRequest(message, code=code, param=param, hint=error.hint)
    if code == "poison_request":
        return InvalidRequest(
            "This request has stopped the engine twice; it is not run again for now.",
            code=code,
            hint="change the request; an operator can let it run again",
        )
    if code == "deadline_exceeded":
        return DeadlineExceeded(
            "The request waited for its whole time and got no answer.",
            hint="the engine has more to do than it can; try again later",
            detail=error.message,
        )
    if code in ("engine_unavailable", "engine_overloaded"):
        public = "overloaded" if code == "engine_overloaded" else code
        return Unavailable(
            "The engine cannot take the request now.", code=public, hint=error.hint, detail=error.message
        )
    return UpstreamFailed("The engine failed on this request.", code="engine_fault", detail=error.message)
