"""Checks that the numbers of a tensor are finite, from their bits: an exponent of all ones is NaN or infinity.

Of a quantized block its float16 scales and minima are read; the codes are integers, and a finite scale times a code is
finite in float32. On chunks that stay in cache, without torch (see `dequantize`). Knows no files.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import WeightsMismatch
from kernels.gguf_formats import GgufFormat

_CHUNK = 1 << 16
_EXPONENTS: dict[torch.dtype, np.int16 | np.int32] = {
    torch.float32: np.int32(0x7F80_0000),
    torch.bfloat16: np.int16(0x7F80),
    torch.float16: np.int16(0x7C00),
}
"""The bits of a number's exponent, in an integer of the number's size."""


def require_finite(name: str, tensor: Tensor) -> None:
    """Raises WeightsMismatch that names the tensor when `tensor` (on the CPU) holds NaN or infinity."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    if not _finite(raw, tensor.dtype):
        raise _not_finite(name, overflows=tensor.dtype == torch.float16)


def require_finite_encoded(name: str, raw: NDArray[np.uint8], form: GgufFormat) -> None:
    """The same for the bytes of a GGUF tensor: of a plain one every number, of blocks their scales and minima."""
    if form.dtype is not None:
        finite = _finite(raw, getattr(torch, form.dtype))
    else:
        blocks = raw.reshape(-1, form.nbytes)
        finite = all(_finite(blocks[:, at : at + 2], torch.float16) for at in form.halves_at)
    if not finite:
        raise _not_finite(name, overflows=False)


def _finite(raw: NDArray[np.uint8], dtype: torch.dtype) -> bool:
    """`raw` uint8 [bytes], or [n, bytes of one number] with gaps between the rows."""
    exponent = _EXPONENTS[dtype]
    numbers = raw.view(exponent.dtype).reshape(-1)
    chunks = (numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK))
    return not any(np.bitwise_and(chunk, exponent).max() == exponent for chunk in chunks)


def _not_finite(name: str, overflows: bool) -> WeightsMismatch:
    hint = "the file is damaged: fetch the model again"
    if overflows:
        hint += ", or its weights are too large for float16: use `dtype: bfloat16`"
    return WeightsMismatch(f"tensor {name} holds numbers that are not finite (NaN or infinity)", hint=hint)
