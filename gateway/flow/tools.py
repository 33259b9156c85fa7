"""The functions that a model may call, and whether it must. Frozen, standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal


@dataclass(frozen=True)
class ToolSpec:
    """One function that the caller offers. Without slots, so that its JSON is written once."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema of the arguments; None: any object."""
    strict: bool = False
    """The arguments must follow the schema."""

    @cached_property
    def parameters_json(self) -> str:
        """The schema as a model reads it; empty without one."""
        return "" if self.parameters is None else json.dumps(self.parameters, ensure_ascii=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a model reads of it as text."""
        return (self.name, self.description, self.parameters_json)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`: the model decides; `none`: it answers itself; `required`: it calls at least one; `named`: it calls that
    one."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    """Of the function, where `mode` is `named`."""


AUTO = ToolChoice()
