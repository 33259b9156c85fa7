"""The C functions of the built kernels with their argument types, and the structures that cross the border.

Mirrors `csrc/api.cpp`, `csrc/linear.h`, `csrc/attention.h` and `csrc/decoder.h`. Owns no memory: tensors stay alive in
the Python values that refer to them.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint16, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from kernels.contracts import KernelError
from kernels.cpu import build


class LinearStruct(ctypes.Structure):
    _fields_ = (
        ("n", c_int64),
        ("k", c_int64),
        ("kind", c_int32),
        ("group", c_int32),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("group_scale", c_void_p),
        ("group_min", c_void_p),
        ("bias", c_void_p),
        ("columns", c_void_p),
    )


class CacheStruct(ctypes.Structure):
    _fields_ = (
        ("key", c_void_p),
        ("value", c_void_p),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("bf16", c_int32),
        ("unused", c_int32),
    )


class LayerStruct(ctypes.Structure):
    _fields_ = (
        ("qkv", POINTER(LinearStruct)),
        ("o", POINTER(LinearStruct)),
        ("gate_up", POINTER(LinearStruct)),
        ("down", POINTER(LinearStruct)),
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cache", CacheStruct),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("window", c_int64),
        ("eps", c_float),
        ("norm_offset", c_float),
        ("scale", c_float),
        ("softcap", c_float),
        ("gelu", c_int32),
        ("unused", c_int32),
    )


class StackStruct(ctypes.Structure):
    _fields_ = (
        ("layers", POINTER(LayerStruct)),
        ("count", c_int64),
        ("hidden_size", c_int64),
        ("rotary_half", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    )


P, N, F, B = c_void_p, c_int64, c_float, c_int
SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "esc_version": (c_int, ()),
    "esc_set_threads": (None, (B,)),
    "esc_rms_norm": (None, (P, P, P, P, N, N, F, F, B, B)),
    "esc_layer_norm": (None, (P, P, P, P, N, N, F, B)),
    "esc_rope": (c_int, (P, P, P, P, P, N, N, N, N, N, N, B)),
    "esc_gate": (None, (P, P, N, N, B, B)),
    "esc_kv_write": (c_int, (POINTER(CacheStruct), P, P, P, N, B)),
    "esc_read_kv": (c_int, (POINTER(CacheStruct), P, P, P, N)),
    "esc_plan_new": (c_void_p, (P, P, P, N, N, N, N, N, N, N, B, POINTER(c_int))),
    "esc_plan_free": (None, (P,)),
    "esc_attend": (c_int, (P, POINTER(CacheStruct), P, P, F, N, F, B)),
    "esc_linear": (None, (POINTER(LinearStruct), P, N, P, B, B)),
    "esc_pack_float": (None, (P, B, N, N, N, P, B)),
    "esc_pack_half": (None, (P, B, N, N, N, P, P)),
    "esc_prefer_bf16_dot": (c_int, (B,)),
    "esc_has_half": (c_int, ()),
    "esc_advise_large_pages": (None, (P, N)),
    "esc_pack_int8": (None, (P, B, N, N, N, P, P)),
    "esc_pack_groups": (None, (P, P, P, N, N, N, N, B, P, P, P)),
    "esc_run_stack": (c_int, (POINTER(StackStruct), P, P, P, P, P, P, N, N, B)),
    "esc_philox": (None, (P, P, P, N)),
    "esc_greedy": (None, (P, N, N, P, P, B)),
    "esc_sample": (None, (P, N, N, P, P, P, P, P, P, B)),
    "esc_row_stats": (c_int, (P, N, N, P, N, P, P, P, P, B)),
    "esc_token_bitmask": (c_int, (P, N, N, P, N, P, N, B)),
}
__all__ = ["SIGNATURES", "CacheStruct", "LayerStruct", "LinearStruct", "StackStruct", "c_double", "c_uint16", "lib"]


class ThreadCount:
    """How many threads the kernels use: torch's number, or one fixed by `own`."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._fixed: int | None = None

    def current(self) -> int:
        if self._first is None:
            self._first = torch.get_num_threads()
        return self._fixed or torch.get_num_threads()

    def own(self, count: int | None) -> None:
        """Fix the number (None: what torch had at first) and leave torch one thread: the workers of its pool spin for
        milliseconds after each operation, on the cores that our next call needs.
        """
        self.current()
        self._fixed = count or self._first
        torch.set_num_threads(1)


THREADS = ThreadCount()


@lru_cache
def lib() -> ctypes.CDLL:
    """The kernels for this CPU."""
    library, _ = build.best_library()
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.esc_set_threads(THREADS.current())
    return library


def sync_threads() -> None:
    """Follow `THREADS`; called once per step."""
    lib().esc_set_threads(THREADS.current())


def is_bf16(x: Tensor) -> int:
    """1 for bfloat16, 0 for float32; other dtypes are widened by the caller."""
    if x.dtype is torch.bfloat16:
        return 1
    if x.dtype is torch.float32:
        return 0
    raise KernelError(f"the CPU kernels take bfloat16 and float32, found {x.dtype}")


def native(x: Tensor) -> Tensor:
    """`x` contiguous in a dtype that the kernels take: float16 is widened to float32."""
    if x.dtype is torch.bfloat16 or x.dtype is torch.float32:
        return x.contiguous()
    return x.float().contiguous()


def typed(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """An index or parameter tensor, contiguous, of exactly `dtype`."""
    if x.dtype is not dtype:
        raise KernelError(f"{name} must be {dtype}, found {x.dtype}")
    return x.contiguous()
