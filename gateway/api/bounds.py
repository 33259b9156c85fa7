"""Size limits of the parts of a body: the field types of every request schema.

A refusal must not cost more than the body could have: lists and maps stop at their first wrong element
(`fail_fast`), and an object with more keys than it could have fields is refused before they are looked at.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_TEXT = 8 * 1024 * 1024
"""Characters of one text. The limit on the body usually comes first; this one holds where that was raised."""
MAX_FIELDS = 128
"""Keys of an object whose fields are known."""
MAX_KEYS = 1024
"""Keys of an object whose keys the caller invents, each of at most so many characters."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
JsonObject = Annotated[
    dict[Annotated[str, Field(max_length=MAX_KEYS)], Any], Field(max_length=MAX_KEYS, fail_fast=True)
]
"""Any JSON object; what is in it is bounded by `body.MAX_VALUES` and by whoever reads it."""


class FewFields(BaseModel):
    """Base of every object that a caller sends."""

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "too many fields", {"max_length": MAX_FIELDS})
        return value
