"""Prompts without a template, as the bodies of completions and embeddings have them: a text, token ids, or a list of
either."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from gateway.api.bounds import MAX_TEXT
from gateway.flow.values import Prompt

MAX_TOKEN_ID = 2**31 - 1
MAX_TOKENS = 1_000_000
MAX_PROMPTS = 2048
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


def _form(value: Any) -> str:
    """Which form was meant, so that an error speaks of that one."""
    if not isinstance(value, list) or not value:
        return "str" if isinstance(value, str) else "list[int]"
    first = value[0]
    return "list[str]" if isinstance(first, str) else "list[list]" if isinstance(first, list) else "list[int]"


def _some_form(value: Any) -> Any:
    if isinstance(value, str | list):
        return value
    raise ValueError("must be text, token ids, or a list of either")


Prompts = Annotated[
    Annotated[PromptText, Tag("str")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("list[str]")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("list[list]")],
    Discriminator(_form),
    BeforeValidator(_some_form),
]


def prompts_of(value: str | list[int] | list[str] | list[list[int]]) -> tuple[Prompt, ...]:
    """Each prompt by itself."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value[0], int):
        return (tuple(value),)
    return tuple([one if isinstance(one, str) else tuple(one) for one in value])
