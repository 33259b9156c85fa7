"""Refuses requests that the engine must not run. Pure: reads a request and the limits, returns or raises.

Every refusal is an `InvalidInput` naming field, value and limit; values are numbers or lengths, never prompt text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import InvalidInput, PromptTooLong
from engine.requests import GenerationRequest, Grammar, SamplingParams
from engine.step import Runner
from engine.text.grammar import check_depth, is_unicode

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 4096
MAX_STOP_IDS = 256
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_REQUEST_ID = 256
MAX_CHOICES = 128
MIN_SHARE_WEIGHT, MAX_SHARE_WEIGHT = 1e-6, 1e6
"""Beyond these, virtual token counters lose single tokens or overflow, for every share."""

_GRAMMARS = ("json_schema", "json_object", "regex", "choice", "grammar", "tool_calls")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of this engine. `window` is the smallest of the model's length, the pool and the share's blocks."""

    vocab_size: int
    window: int
    max_choices: int
    cache_salt_required: bool


def request_limits(config: EngineConfig, runner: Runner, *, paged: bool = True) -> RequestLimits:
    """`paged` is False for a sentence encoder, which keeps no cache: only its own length limits it."""
    window = min(runner.max_model_len, config.max_model_len or runner.max_model_len)
    blocks = min(runner.num_blocks, config.max_blocks_per_share or runner.num_blocks)
    return RequestLimits(
        vocab_size=runner.vocab_size,
        window=min(window, blocks * runner.block_size) if paged else window,
        max_choices=min(MAX_CHOICES, config.max_num_seqs),
        cache_salt_required=config.cache_salt_required and config.enable_prefix_caching,
    )


def validate(request: GenerationRequest, limits: RequestLimits) -> int:
    """Return the resolved `max_tokens`. Raises `InvalidInput`, or `PromptTooLong` when prompt and answer do not fit."""
    sampling = request.sampling
    _check_identity(request, limits)
    check_prompt(request.prompt_token_ids, limits)
    _check_numbers(sampling, limits)
    _check_tokens(sampling, limits.vocab_size)
    _check_texts(sampling)
    if sampling.grammar is not None:
        _check_grammar(sampling.grammar)
    return _resolve_max_tokens(len(request.prompt_token_ids), sampling, limits.window)


def check_prompt(token_ids: tuple[int, ...], limits: RequestLimits) -> None:
    """Not empty, every id inside the vocabulary, room for one more token."""
    if not token_ids:
        raise InvalidInput("prompt", 0, "must hold at least one token")
    if len(token_ids) > limits.window:
        raise PromptTooLong(len(token_ids), 1, limits.window)
    _check_ids("prompt", token_ids, limits.vocab_size)


def _check_identity(request: GenerationRequest, limits: RequestLimits) -> None:
    _check_strings("request_id", (request.request_id,), 1, MAX_REQUEST_ID)
    if not isinstance(request.scheduling.share_key, str):
        raise InvalidInput("share_key", _shown(request.scheduling.share_key), "must be text")
    if request.cache_salt is None and limits.cache_salt_required:
        raise InvalidInput("cache_salt", None, "must be given: this engine isolates the prefix cache by salt")
    if not isinstance(request.cache_salt, bytes | None):
        raise InvalidInput("cache_salt", _shown(request.cache_salt), "must be bytes")
    _check_real("share_weight", request.scheduling.share_weight, MIN_SHARE_WEIGHT, MAX_SHARE_WEIGHT)
    _check_int("priority", request.scheduling.priority, -(2**31), 2**31 - 1)
    if request.scheduling.deadline_s is not None and not _is_real(request.scheduling.deadline_s):
        raise InvalidInput("deadline_s", request.scheduling.deadline_s, "must be a finite number")
    if request.adapter is not None:
        raise InvalidInput("adapter", request.adapter[:64], "names no adapter of this model; it has none")


def _check_numbers(sampling: SamplingParams, limits: RequestLimits) -> None:
    _check_int("n", sampling.n, 1, limits.max_choices)
    _check_int("min_tokens", sampling.min_tokens, 0, limits.window)
    _check_real("temperature", sampling.temperature, 0.0, 2.0)
    _check_real("top_p", sampling.top_p, 0.0, 1.0, above=True)
    _check_real("min_p", sampling.min_p, 0.0, 1.0)
    _check_int("top_k", sampling.top_k, -1, limits.vocab_size)
    _check_real("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_real("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _check_real("repetition_penalty", sampling.repetition_penalty, 0.0, 10.0, above=True)
    if sampling.seed is not None:
        _check_int("seed", sampling.seed, -(2**63), 2**64 - 1)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if value is not None:
            _check_int(name, value, 0, MAX_LOGPROBS)


def _check_tokens(sampling: SamplingParams, vocab_size: int) -> None:
    _check_count("stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_IDS)
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    if not isinstance(sampling.logit_bias, Mapping):
        raise InvalidInput("logit_bias", _shown(sampling.logit_bias), "must map token ids to numbers")
    _check_count("logit_bias", len(sampling.logit_bias), MAX_BIASED_TOKENS)
    _check_ids("logit_bias", sampling.logit_bias, vocab_size)
    for bias in sampling.logit_bias.values():
        _check_real("logit_bias", bias, -100.0, 100.0)
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            raise InvalidInput("allowed_token_ids", 0, "must hold at least one id")
        _check_count("allowed_token_ids", len(sampling.allowed_token_ids), vocab_size)
        _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab_size)


def _check_texts(sampling: SamplingParams) -> None:
    _check_strings("stop", sampling.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS)
    total = sum(len(stop) for stop in sampling.stop)
    if total > MAX_STOP_CHARS:
        raise InvalidInput("stop", total, f"must have at most {MAX_STOP_CHARS} characters in all")
    _check_strings("bad_words", sampling.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)


def _check_grammar(grammar: Grammar) -> None:
    if grammar.type not in _GRAMMARS:
        raise InvalidInput("grammar.type", grammar.type, f"must be one of {', '.join(_GRAMMARS)}")
    check_depth(f"grammar.{grammar.type}", grammar.value)


def _resolve_max_tokens(prompt_tokens: int, sampling: SamplingParams, window: int) -> int:
    asked = sampling.max_tokens
    if asked is None:
        asked = window - prompt_tokens
        if asked < 1:
            raise PromptTooLong(prompt_tokens, 1, window)
    elif asked == 0 and sampling.prompt_logprobs is not None:
        return 0
    _check_int("max_tokens", asked, 1, 2**31 - 1)
    if prompt_tokens + asked > window:
        raise PromptTooLong(prompt_tokens, asked, window)
    if sampling.min_tokens > asked:
        raise InvalidInput("min_tokens", sampling.min_tokens, f"must be at most `max_tokens` ({asked})")
    return asked


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_real(field: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    if _is_real(value):
        number = float(value)  # type: ignore[arg-type]
        if number <= high and (number > low if above else number >= low):
            return
    raise InvalidInput(field, _shown(value), f"must be in {'(' if above else '['}{low:g}, {high:g}]")


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(field, _shown(value), f"must be an integer from {low} to {high}")


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidInput(field, count, f"may hold at most {most} entries")


def _check_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size):
        return
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise InvalidInput(field, _shown(token_id), f"token ids run from 0 to {vocab_size - 1}")


def _check_strings(field: str, values: tuple[str, ...], most: int, most_chars: int) -> None:
    if not isinstance(values, tuple | list):
        raise InvalidInput(field, _shown(values), "must be a list of strings")
    _check_count(field, len(values), most)
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= most_chars:
            length = len(value) if isinstance(value, str) else _shown(value)
            raise InvalidInput(field, length, f"each entry must have 1 to {most_chars} characters")
        if not is_unicode(value):
            raise InvalidInput(field, len(value), "holds half of a surrogate pair, which is no character")


def _shown(value: object) -> object:
    """Numbers as they are; anything else by its type, so that no prompt text reaches an error."""
    return value if isinstance(value, int | float) or value is None else type(value).__name__
