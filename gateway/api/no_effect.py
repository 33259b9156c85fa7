"""Parameters of OpenAI's routes that ask for nothing: SDKs and frameworks send them with every request.

Only values that change nothing are dropped. Every other value stays, and is refused like any unknown parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NULLABLE: Mapping[str, frozenset[str]] = {
    "chat": frozenset(
        {
            "audio", "function_call", "functions", "modalities", "moderation", "parallel_tool_calls", "prediction",
            "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier",
            "store", "tool_choice", "tools", "verbosity", "web_search_options",
        }
    ),
    "completions": frozenset({"best_of", "suffix"}),
    "embeddings": frozenset({"dimensions"}),
}  # fmt: skip
"""Optional parameters that we do not have: null means absent."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto",),
    "store": (False,),
    "tool_choice": ("none", "auto"),
}
"""What a chat may say without tools, storage or service tiers, because it is what happens anyway."""


def without_no_effect(action: str, body: object) -> object:
    """The body without the parameters that change nothing; anything but an object as it is."""
    if not isinstance(body, dict):
        return body
    nullable = NULLABLE[action]
    return {name: value for name, value in body.items() if name not in nullable or not _asks_nothing(name, value)}


def _asks_nothing(name: str, value: Any) -> bool:
    # 0 equals False and is not what the parameter takes.
    return value is None or any(type(value) is type(plain) and value == plain for plain in NEUTRAL.get(name, ()))
