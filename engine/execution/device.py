"""Device, precision and kernel back end of a model: resolves `auto`.

Owns the refusals that name what this machine lacks. Knows no model.
"""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInput
from kernels import dispatch
from kernels.contracts import KernelError, Ops

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_BF16_CAPABILITIES = ("avx512_bf16", "amx_bf16", "bf16")


FLOAT8 = ("fp8", "fp8_e4m3")


def kv_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Of keys and values in the cache of a model that computes in `dtype`."""
    if config.kv_cache_dtype == "auto":
        return dtype
    return torch.float8_e4m3fn if config.kv_cache_dtype in FLOAT8 else DTYPES[config.kv_cache_dtype]


def load_ops(config: EngineConfig, device: torch.device) -> Ops:
    """Raises InvalidInput when the named back end cannot run here; the message says why."""
    try:
        return dispatch.load(
            config.kernel_backend, device, deterministic=config.deterministic, threads=config.threads or "auto"
        )
    except KernelError as error:
        raise InvalidInput("kernel_backend", config.kernel_backend, str(error), hint="use `auto`") from error


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where present. Raises InvalidInput for a device that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput("device", name, "must be auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("device", name, "this machine has no usable CUDA device", hint="use `--device cpu`")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it, float32 elsewhere."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if any(capabilities.get(name) for name in _BF16_CAPABILITIES) else torch.float32
