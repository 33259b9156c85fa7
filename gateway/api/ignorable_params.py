"""Parameters of OpenAI's routes that ask for nothing, and hints: SDKs and frameworks send them with every request.

Only values that change nothing are dropped, and hints, which a server may follow or not (the answer names those in
`x-esclusa-ignored`). Every other value stays, and is refused like any unknown parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NULLABLE: Mapping[str, frozenset[str]] = {
    "chat": frozenset(
        {
            "audio", "function_call", "functions", "modalities", "moderation", "parallel_tool_calls", "prediction",
            "best_of", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "service_tier", "store",
            "tool_choice", "tools", "verbosity", "web_search_options",
        }
    ),
    "completions": frozenset({"suffix"}),
    "embeddings": frozenset({"dimensions"}),
}  # fmt: skip
"""Optional parameters that we do not have: null means absent."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
"""What a chat may say without tools, storage or service tiers, because it is what happens anyway."""


HINTS: Mapping[str, frozenset[str] | None] = {
    "prompt_cache_key": None,
    "prompt_cache_retention": frozenset({"in_memory", "in-memory", "24h"}),
    "reasoning_effort": frozenset({"none", "minimal", "low", "medium", "high", "xhigh"}),
    "verbosity": frozenset({"low", "medium", "high"}),
}
"""Of a chat: what to cache by, how long to think and to write. The values that OpenAI takes; None: any short text."""
MAX_HINT = 1024


def without_hints(action: str, body: object) -> tuple[object, tuple[str, ...]]:
    """The body without its hints, and their names."""
    if action != "chat" or not isinstance(body, dict):
        return body, ()
    names = tuple(name for name in HINTS if name in body and _is_hint(body[name], HINTS[name]))
    return ({name: value for name, value in body.items() if name not in names} if names else body), names


def _is_hint(value: Any, known: frozenset[str] | None) -> bool:
    return isinstance(value, str) and (len(value) <= MAX_HINT if known is None else value in known)


def without_no_effect(action: str, body: object) -> object:
    """The body without the parameters that change nothing; anything but an object as it is."""
    if not isinstance(body, dict):
        return body
    nullable = NULLABLE[action]
    return {name: value for name, value in body.items() if name not in nullable or not _asks_nothing(name, value)}


def _asks_nothing(name: str, value: Any) -> bool:
    # 0 equals False and is not what the parameter takes.
    return value is None or any(type(value) is type(plain) and value == plain for plain in NEUTRAL.get(name, ()))
