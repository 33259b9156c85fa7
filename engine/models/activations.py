"""The activation functions that a configuration may name, and what each family can compute.

Owns the public names (transformers' `ACT2FN`). A name outside of a family's table is refused: computing another
function would give plausible and wrong answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor

from engine.errors import UnsupportedModel

T = TypeVar("T")
GATED: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""Public name -> the gated op that computes it. `gelu_new` and `gelu_fast` are the tanh approximation, spelled out."""
PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
"""Public name -> function, for feed-forward blocks without a gate."""


def activation(table: Mapping[str, T], name: str) -> T:
    """Raises UnsupportedModel for a name that `table` does not have."""
    if name not in table:
        raise UnsupportedModel(
            f"the activation {name[:64]!r} is not supported here", hint=f"supported: {', '.join(sorted(table))}"
        )
    return table[name]
