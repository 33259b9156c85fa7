"""Token budget and price of a request: pure arithmetic over cards, obligations and prompts.

Knows no tokenizer and no store; where a backend cannot count, it gives an upper-leaning estimate and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.flow.parts import digest_form
from gateway.flow.values import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Estimate,
    GeneratingRequest,
    LimitRule,
    ModelCard,
    ModelRequest,
    Obligations,
    Prepared,
    Prompt,
    Reservation,
    Usage,
)

MILLION = 1_000_000
BYTES_PER_TOKEN = 3
"""English averages about four bytes a token, Spanish about three and a half; three errs on the safe side."""
TOKENS_PER_TURN = 8
LEAST_ROOM = 4
"""A guessed prompt that leaves less than this part of the window is not believed: it may be much shorter."""


def rough_prompt_tokens(request: ModelRequest) -> int:
    """An upper-leaning guess for backends that cannot count."""
    match request:
        case ChatRequest(messages=messages, tools=tools):
            turns = len(messages) + len(tools)
            return -(-sum(map(_bytes, request.texts)) // BYTES_PER_TOKEN) + TOKENS_PER_TURN * turns
        case CompletionRequest(prompts=prompts):
            return sum(map(_rough_tokens, prompts))
        case EmbeddingRequest(inputs=inputs):
            return sum(_rough_tokens(one) + 1 for one in inputs)


def _rough_tokens(prompt: Prompt) -> int:
    return -(-_bytes(prompt) // BYTES_PER_TOKEN) + 1 if isinstance(prompt, str) else len(prompt)


def _bytes(text: str) -> int:
    return len(text.encode())


def cost_micro(card: ModelCard, prompt_tokens: int, completion_tokens: int) -> int:
    """Micro-units of the card's currency, rounded up."""
    price = prompt_tokens * card.price_in_micro + completion_tokens * card.price_out_micro
    return -(-price // MILLION)


def usage_cost(card: ModelCard, usage: Usage) -> int:
    return cost_micro(card, usage.prompt_tokens, usage.completion_tokens)


def estimate(request: ModelRequest, card: ModelCard, obligations: Obligations, prepared: Prepared) -> Estimate:
    """The most this request may use on this model, per choice.

    Raises `ContextLengthExceeded` when the prompt, or the prompt with an explicit `max_tokens`, does not fit; with
    `up_to_window` the answer gets what room there is. An inexact count never refuses on its own: the backend has the
    last word. What is only counted uses nothing. Raises `InvalidRequest` where it cannot be.
    """
    counted = prepared.prompt_tokens
    exact = counted is not None
    prompt_tokens = rough_prompt_tokens(request) if counted is None else counted
    if not request.runs:
        if not exact:
            raise InvalidRequest(
                "The tokens of this model's prompts cannot be counted here: only its upstream knows them.",
                code="unsupported_action",
                param="model",
                hint="ask for a model that runs on this gateway; `usage` of an answer has the upstream's own count",
            )
        return Estimate(0, 0)
    if isinstance(request, EmbeddingRequest):
        return Estimate(prompt_tokens, 0, cost_micro(card, prompt_tokens, 0), exact=exact)
    params = request.params
    longest = prompt_tokens if prepared.longest_prompt is None else prepared.longest_prompt
    room = card.context_window - longest
    if exact and room < 1:
        raise prompt_too_long(request, card, str(longest))
    if exact and params.max_tokens is not None and params.max_tokens > room and not params.up_to_window:
        raise ContextLengthExceeded(
            f"{overflow(card)} However, you requested {longest + params.max_tokens} tokens "
            f"({longest} in the prompt, {params.max_tokens} in the completion).",
            param="max_tokens",
            hint=f"the largest `max_tokens` that fits is {room}",
        )
    wanted = params.max_tokens
    if wanted is None:
        usual = (room, card.default_max_tokens, obligations.default_output_tokens)
        wanted = max(1, min([length for length in usual if length is not None]))
    if params.up_to_window and room >= (1 if exact else card.context_window // LEAST_ROOM):
        wanted = min(wanted, room)
    caps = (wanted, card.max_output_tokens, obligations.max_output_tokens)
    output = min(cap for cap in caps if cap is not None)
    made = request.choices // params.n * max(params.n, params.best_of)
    return Estimate(
        prompt_tokens=prompt_tokens,
        max_output_tokens=output,
        cost_micro=cost_micro(card, prompt_tokens, output * made),
        choices=made,
        exact=exact,
    )


def prompt_too_long(request: ModelRequest, card: ModelCard, count: str) -> ContextLengthExceeded:
    """`count`: the prompt's tokens, or "at least" so many where it was not read to its end."""
    whose, what = ("an input", "input") if isinstance(request, EmbeddingRequest) else ("your prompt", "prompt")
    return ContextLengthExceeded(
        f"{overflow(card)} However, {whose} has {count} tokens ({what} is too long).",
        param=request.prompt_param,
        hint=f"shorten the {what}",
    )


def overflow(card: ModelCard) -> str:
    """OpenAI's sentence: clients that shorten a conversation and try again recognize an overflow by these words."""
    return f"This model's maximum context length is {card.context_window} tokens."


def guarded(request: GeneratingRequest, obligations: Obligations) -> GeneratingRequest:
    """The request as the backend gets it: with what policy asks of the sampler."""
    if obligations.repetition_guard == "off":
        return request
    return replace(request, params=replace(request.params, stop_on_repetition=True))


def granted_tokens(bound: Estimate, reservation: Reservation) -> int:
    """Output tokens per choice that limits allow; the backend must stop there."""
    return min(bound.max_output_tokens, reservation.granted_output_tokens)


def prompt_digest(request: ModelRequest) -> bytes:
    """SHA-256 over roles and texts with unambiguous separators; the audit commits to it with a salt."""
    match request:
        case ChatRequest(messages=messages, tools=tools):
            parts = [f"{message.role}\x1f{digest_form(message.content)}" for message in messages]
            # No role is called `function`, so that no message looks like one.
            parts += ["\x1f".join(["function", *(f"{len(text)}\x1f{text}" for text in tool.texts)]) for tool in tools]
        case CompletionRequest(prompts=(prompt,)):
            parts = [str(prompt)]
        case CompletionRequest(prompts=prompts):
            parts = ["\x1f".join(["prompts", *(f"{len(str(one))}\x1f{one}" for one in prompts)])]
        case EmbeddingRequest(inputs=inputs):
            parts = [f"{len(str(one))}\x1f{one}" for one in inputs]
    return hashlib.sha256("\x1e".join(parts).encode()).digest()


def requests_only(limits: Sequence[LimitRule]) -> tuple[LimitRule, ...]:
    """The same limits as far as they count requests."""
    return tuple(
        replace(rule, tokens=None, tokens_in=None, tokens_out=None, concurrent=None, cost_micro=None)
        for rule in limits
        if rule.requests is not None
    )
