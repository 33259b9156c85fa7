"""Makes Triton's interpreter compute what a GPU computes.

Triton 3.8 interprets three things wrongly, without an error: `tl.dot` multiplies the bit patterns of bfloat16, float32
to bfloat16 truncates, and float32 to float8 drops the carry into the exponent. Casts go through torch here (nearest
even), and products of bfloat16 through float32, which holds them exactly. Infinities raise no warning, as on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH_TYPES = {
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_MARK = "esclusa_exact"


def make_exact() -> None:
    """Replace the interpreter's casts and products, once per process."""
    if getattr(interpreter, _MARK, False):
        return
    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def exact_convert(values: Any, source: Any, target: Any, mode: Any) -> Any:
        truncates = mode == interpreter._ir.ROUNDING_MODE.RTZ
        if truncates or source not in TORCH_TYPES or target not in TORCH_TYPES:
            return convert(values, source, target, mode)
        width = source.primitive_bitwidth
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), dtype="uint8" if width == 8 else f"int{width}")
        cast = torch.from_numpy(raw.copy()).view(TORCH_TYPES[source]).to(TORCH_TYPES[target])
        bits = target.primitive_bitwidth
        return cast.view(BITS[bits]).numpy().view(f"uint{bits}").reshape(values.shape)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = exact_convert(handle.data, tl.bfloat16, tl.float32, None).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def exact_dot(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(builder, widened(a), widened(b), d, *rest)

    run = interpreter.GridExecutor.__call__

    def quiet_run(executor: Any, *arguments: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(executor, *arguments, **options)

    interpreter._convert_float = exact_convert
    interpreter.GridExecutor.__call__ = quiet_run
    interpreter.InterpreterBuilder.create_dot = exact_dot
    setattr(interpreter, _MARK, True)
