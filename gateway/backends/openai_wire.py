"""OpenAI's JSON on the side of the upstream: requests out, answers and stream events in. Pure.

Only validated values are written, so nothing a caller invented reaches an upstream; an upstream's own error text goes
no further than here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.backends.openai_deltas import ChoiceCalls, deltas_of, joined_reason, text_of
from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest, Unavailable, UpstreamFailed
from gateway.flow.parts import message_fields
from gateway.flow.values import (
    ChatRequest,
    ChoiceEnd,
    Chunk,
    CompletionRequest,
    Delta,
    EmbeddingRequest,
    GeneratingRequest,
    GenerationParams,
    Message,
    ModelCard,
    ModelRequest,
    TextDelta,
    TokenLogprob,
    ToolSpec,
    Usage,
    UsageReport,
)

MISSHAPEN = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What reading a value of another shape raises."""
REASONS = {reason: reason for reason in ("stop", "length", "content_filter", "tool_calls", "abort")} | {
    "function_call": "tool_calls"
}
"""How an answer may end. What else a server says is `stop`: its words go no further than here."""
MOST_TOKENS = 1_000_000_000
"""A greater count is no count; believed, it would use up a budget by itself."""
MAX_STOP = 256
"""Characters of a stop string that an upstream names."""
PATHS = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}


def embedding_body(request: EmbeddingRequest, card: ModelCard) -> bytes:
    body: dict[str, Any] = {"model": card.upstream_model or card.id, "input": list(request.inputs)}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    return orjson.dumps(body)


def request_body(request: GeneratingRequest, card: ModelCard, max_output_tokens: int) -> bytes:
    """The body for the upstream: its own model name, our limit on the output."""
    body: dict[str, Any] = {"model": card.upstream_model or card.id}
    if isinstance(request, ChatRequest):
        body["messages"] = [_turn(message) for message in request.messages]
        body |= _tools(request)
        if request.template_kwargs:
            body["chat_template_kwargs"] = dict(request.template_kwargs)
    else:
        body["prompt"] = request.prompts[0] if len(request.prompts) == 1 else request.prompts
    body["max_tokens"] = max_output_tokens
    _sampling(body, request.params, chat=isinstance(request, ChatRequest))
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return orjson.dumps(body)


def _tools(request: ChatRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    choice, body = request.tool_choice, dict[str, Any]()
    body["tools"] = [{"type": "function", "function": function_fields(tool)} for tool in request.tools]
    if choice.mode == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.mode != "auto":
        body["tool_choice"] = choice.mode
    if not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    return body


def function_fields(tool: ToolSpec) -> dict[str, Any]:
    """The function of a tool as OpenAI's API and chat templates name its fields."""
    fields: dict[str, Any] = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    if tool.parameters is not None:
        fields["parameters"] = tool.parameters
    if tool.strict:
        fields["strict"] = True
    return fields


def _turn(message: Message) -> dict[str, Any]:
    turn = {"role": message.role, **message_fields(message.content)}
    return turn if message.name is None else turn | {"name": message.name}


def require_known_echo(request: ModelRequest) -> None:
    """Raises `InvalidRequest` where the text of the echo is not known: it could not be told from what was generated."""
    if (
        request.params.echo
        and isinstance(request, CompletionRequest)
        and not all(isinstance(prompt, str) for prompt in request.prompts)
    ):
        raise InvalidRequest(
            "`echo` of a prompt of token ids is not supported for this model.",
            code="unsupported_parameter",
            param="echo",
            hint="send the prompt as text, or leave `echo` out",
        )


def _sampling(body: dict[str, Any], params: GenerationParams, *, chat: bool) -> None:
    optional: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": None if params.top_k == -1 else params.top_k,
        "min_p": params.min_p,
        "seed": params.seed,
        "stop": list(params.stop) or None,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "repetition_penalty": None if params.repetition_penalty == 1.0 else params.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
        "min_tokens": params.min_tokens or None,
        "ignore_eos": params.ignore_eos or None,
        "include_stop_str_in_output": params.include_stop_str_in_output or None,
        "skip_special_tokens": None if params.skip_special_tokens else False,
        "bad_words": list(params.bad_words) or None,
        "allowed_token_ids": list(params.allowed_token_ids) if params.allowed_token_ids is not None else None,
        "prompt_logprobs": params.prompt_logprobs,
        "echo": params.echo or None,
        "n": params.n if params.n > 1 else None,
        "best_of": params.best_of if params.best_of > params.n else None,
    }
    if params.logprobs and chat:
        optional |= {"logprobs": True, "top_logprobs": params.top_logprobs}
    elif params.logprobs:
        optional["logprobs"] = params.top_logprobs
    if params.grammar is not None:
        optional |= _grammar(params.grammar)
    for name, value in optional.items():
        if value is not None:
            body[name] = value


def _grammar(grammar: Mapping[str, Any]) -> dict[str, Any]:
    kind, value = grammar["type"], grammar["value"]
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        said = {name: grammar[name] for name in ("name", "description", "strict") if name in grammar}
        # Without a name it came as a constraint of vLLM's, which always holds.
        form = said if "name" in said else {"name": "answer", "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": {**form, "schema": value}}}
    return {"structured_outputs": {kind: value}}


def whole_chunks(raw: bytes, action: str, *, choices: int) -> list[Chunk]:
    """A whole answer as chunks, usage last. Raises `UpstreamFailed` when it is not one of so many choices."""
    body = _object(raw)
    try:
        found = [_whole_choice(choice, action, choices) for choice in body["choices"]]
        if not found or len({chunks[-1].index for chunks in found}) < len(found):
            raise ValueError("no choices, or one twice")
        usage = _usage(body.get("usage"))
    except MISSHAPEN:
        raise _misshapen() from None
    chunks: list[Chunk] = [chunk for choice in found for chunk in choice]
    return chunks if usage is None else [*chunks, UsageReport(usage)]


def _whole_choice(choice: Mapping[str, Any], action: str, choices: int) -> list[Delta | ChoiceEnd]:
    fields = choice.get("message") or {} if action == "chat" else {"content": choice.get("text")}
    index, calls = _index(choice, choices), ChoiceCalls()
    deltas = deltas_of(fields, index, calls, _logprobs(choice.get("logprobs")), whole=True) or [TextDelta(index)]
    reason = joined_reason(_reason(choice.get("finish_reason")) or "stop", calls)
    return [*deltas[:-1], ChoiceEnd(deltas[-1], reason, stop_reason=_stop_reason(choice))]


def _stop_reason(choice: Mapping[str, Any]) -> str | int | None:
    """What vLLM says beyond OpenAI's `finish_reason`; not longer than a stop string may be."""
    found = choice.get("stop_reason")
    return found if isinstance(found, int) or (isinstance(found, str) and len(found) <= MAX_STOP) else None


def stream_chunks(
    payload: bytes, action: str, *, choices: int, calls: dict[int, ChoiceCalls] | None = None
) -> list[Chunk]:
    """The chunks of one event; `calls` is what the events before have left. Raises `UpstreamFailed` for an error event
    or nonsense."""
    calls = {} if calls is None else calls
    body = _object(payload)
    if "error" in body:
        raise UpstreamFailed("The upstream failed in the middle of its answer.")
    found = list[Chunk]()
    try:
        for choice in body.get("choices") or ():
            fields = choice.get("delta") or {} if action == "chat" else {"content": choice.get("text")}
            index, reason, logprobs = (
                _index(choice, choices),
                _reason(choice.get("finish_reason")),
                choice.get("logprobs"),
            )
            made = calls.setdefault(index, ChoiceCalls())
            deltas = deltas_of(fields, index, made, _logprobs(logprobs) if logprobs else ())
            if reason is None:
                found += deltas
                continue
            last = deltas.pop() if deltas else TextDelta(index)
            found += [*deltas, ChoiceEnd(last, joined_reason(reason, made), stop_reason=_stop_reason(choice))]
        if (usage := _usage(body.get("usage") or None)) is not None:
            found.append(UsageReport(usage))
    except MISSHAPEN:
        raise _misshapen() from None
    return found


def vectors(raw: bytes, *, inputs: int) -> tuple[tuple[tuple[float, ...], ...], Usage]:
    """One vector for each input, in order. Raises `UpstreamFailed` for anything else."""
    body = _object(raw)
    try:
        rows = sorted(body["data"], key=lambda row: row["index"])
        if [row["index"] for row in rows] != list(range(inputs)):
            raise ValueError("not one vector for each input")
        found = tuple(tuple(float(value) for value in row["embedding"]) for row in rows)
        return found, _usage(body.get("usage")) or Usage(source="estimated")
    except MISSHAPEN:
        raise _misshapen() from None


def refusal(status: int, headers: Mapping[bytes, bytes], raw: bytes) -> GatewayError:
    """What a caller is told about an upstream's error: its kind, never its text."""
    if status == 429:
        wait = headers.get(b"retry-after", b"")
        return Unavailable(
            "The model's server is at its limit.",
            code="upstream_overloaded",
            retry_after_s=min(int(wait), 3600) if wait.isdigit() else 5,
        )
    if status in (400, 404, 422):
        try:
            code = (_object(raw).get("error") or {}).get("code")
        except (UpstreamFailed, AttributeError):
            code = None
        if code == "context_length_exceeded":
            return ContextLengthExceeded(
                "This model's maximum context length is exceeded by your prompt and `max_tokens`.",
                param="messages",
                hint="shorten the prompt or lower `max_tokens`",
            )
        if status != 404:
            return InvalidRequest("The model's server does not accept these parameters.", code="upstream_refused")
    return UpstreamFailed("The model's server refused or failed.", detail=f"status {status}")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise UpstreamFailed("The upstream's answer is not JSON.", code="upstream_invalid") from None
    if not isinstance(body, dict):
        raise UpstreamFailed("The upstream's answer is not an object.", code="upstream_invalid")
    return body


def _misshapen() -> UpstreamFailed:
    return UpstreamFailed("The upstream's answer has not the shape of one.", code="upstream_invalid")


def _reason(value: Any) -> str | None:
    reason = text_of(value)
    return REASONS.get(reason, "stop") if reason else None


def _index(choice: Mapping[str, Any], choices: int) -> int:
    index = choice.get("index", 0)
    if type(index) is not int or not 0 <= index < choices:
        raise ValueError("not one of the choices that were asked for")
    return index


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details") or {}
    prompt = _count(value.get("prompt_tokens") or value.get("input_tokens"))
    completion = _count(value.get("completion_tokens") or value.get("output_tokens"))
    if prompt and not completion:
        completion = max(0, _count(value.get("total_tokens")) - prompt)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=_count(details.get("cached_tokens")),
        reasoning_tokens=_count((value.get("completion_tokens_details") or {}).get("reasoning_tokens")),
        source="upstream",
    )


def _count(value: Any) -> int:
    """A negative count would give a budget back."""
    count = int(value or 0)
    if not 0 <= count <= MOST_TOKENS:
        raise ValueError("not a count of tokens")
    return count


def _logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    if not isinstance(value, dict):
        return ()
    if isinstance(value.get("content"), list):
        return tuple(
            _entry(entry, tuple(_entry(top) for top in entry.get("top_logprobs") or ())) for entry in value["content"]
        )
    tokens, scores = value.get("tokens") or (), value.get("token_logprobs") or ()
    tops = value.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(
            token=token,
            token_id=-1,
            logprob=None if score is None else float(score),
            top=tuple(TokenLogprob(token=name, token_id=-1, logprob=other) for name, other in (top or {}).items()),
        )
        for token, score, top in zip(tokens, scores, tops, strict=False)
    )


def _entry(entry: Mapping[str, Any], top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(
        token=str(entry.get("token", "")),
        token_id=-1,
        logprob=float(entry.get("logprob", 0.0)),
        token_bytes=tuple(entry.get("bytes") or ()),
        top=top,
    )
