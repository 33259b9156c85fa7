"""Parameters that ask for nothing, and hints: SDKs and frameworks send them with every request.

Only values that change nothing are dropped, and hints, which a server may follow or not (the answer names those in
`x-esclusa-ignored`). Every other value stays, and is refused like any unknown parameter, some with the parameter that
does what was meant.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

NEUTRAL: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "chat": {
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "best_of": (1,),
        "continue_final_message": (False,),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "length_penalty": (1, 1.0),
        "modalities": (["text"],),
        "priority": (0,),
        "return_token_ids": (False,),
        "service_tier": ("auto", "default"),
        "spaces_between_special_tokens": (True,),
        "store": (False,),
        "use_beam_search": (False,),
    },
    "completions": {
        "add_special_tokens": (True,),
        "length_penalty": (1, 1.0),
        "priority": (0,),
        "return_token_ids": (False,),
        "service_tier": ("auto", "default"),
        "spaces_between_special_tokens": (True,),
        "suffix": ("",),
        "use_beam_search": (False,),
    },
}
"""By action, what a request may say of parameters that we do not have, because it is what happens anyway."""

HINTS: Mapping[str, frozenset[str | bool] | type] = {
    "prediction": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": frozenset({"in_memory", "in-memory", "24h"}),
    "reasoning_effort": frozenset({"none", "minimal", "low", "medium", "high", "xhigh"}),
    "service_tier": frozenset({"flex", "priority", "scale"}),
    "store": frozenset({True}),
    "verbosity": frozenset({"low", "medium", "high"}),
}
"""What to cache by and how long, how long to think and to write, what the answer will be like, where to keep it. The
values that OpenAI takes, or the type of them."""
MAX_HINT = 1024
INSTEAD: Mapping[str, str] = {
    "best_of": "`/v1/completions` takes `best_of`; in a chat ask for `n` choices",
    "functions": "send `tools`",
    "function_call": "send `tool_choice`",
    "num_ctx": "the context length belongs to the model: GET /v1/models",
    "num_predict": "send `max_tokens`",
    "repeat_penalty": "send `repetition_penalty`",
    "suffix": "models here continue a text and fill no gaps; put the beginning into `prompt`",
    "typical_p": "send `top_p` or `min_p`",
}
"""Hints of a refusal: the parameter of ours for one of other servers."""


def without_hints(action: str, body: object) -> tuple[object, tuple[str, ...]]:
    """The body without its hints, and their names."""
    if action not in NEUTRAL or not isinstance(body, dict):
        return body, ()
    names = tuple(name for name in HINTS if name in body and _is_hint(body[name], HINTS[name]))
    return ({name: value for name, value in body.items() if name not in names} if names else body), names


def _is_hint(value: Any, known: frozenset[str | bool] | type) -> bool:
    if isinstance(known, type):
        return isinstance(value, known) and (not isinstance(value, str) or len(value) <= MAX_HINT)
    return isinstance(value, str | bool) and value in known


def without_no_effect(action: str, body: object, fields: Container[str]) -> object:
    """The body without the parameters that change nothing, null for one that is none of `fields` among them; anything
    but an object as it is."""
    if not isinstance(body, dict):
        return body
    neutral = NEUTRAL.get(action, {})
    return {
        name: value
        for name, value in body.items()
        if name in fields or (value is not None and not _is_neutral(value, neutral.get(name, ())))
    }


def _is_neutral(value: Any, plain_values: tuple[Any, ...]) -> bool:
    # 0 equals False and is not what the parameter takes.
    return any(type(value) is type(plain) and value == plain for plain in plain_values)
