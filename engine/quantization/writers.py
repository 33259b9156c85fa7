"""Neutral weights as the tensors and the `quantization_config` of a format: the inverse of `engine.weights.formats`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.weights.formats.awq import interleaved
from engine.weights.formats.words import ONES, pack
from kernels.contracts import FloatWeight, IntWeight

Tensors = dict[str, Tensor]


def awq_tensors(module: str, weight: IntWeight) -> Tensors:
    """4 bits with zero points; outputs in whole eights, and no order of columns."""
    assert weight.bits == 4
    assert weight.columns is None
    zero = torch.full_like(weight.scale, 8.0) if weight.zero is None else weight.zero
    return {
        f"{module}.qweight": interleaved(weight.codes.T.contiguous()),
        f"{module}.qzeros": interleaved(zero.T.to(torch.uint8).contiguous()),
        f"{module}.scales": weight.scale.T.half().contiguous(),
    }


def awq_config(group: int) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }


def gptq_tensors(module: str, weight: IntWeight, *, v2: bool = False) -> Tensors:
    """Inputs and outputs times bits in whole words of 32."""
    inputs = weight.in_features
    order = torch.arange(inputs) if weight.columns is None else weight.columns
    codes, groups = torch.empty_like(weight.codes), torch.empty(inputs, dtype=torch.int32)
    codes[:, order] = weight.codes
    groups[order] = (torch.arange(inputs) // weight.group).to(torch.int32)
    middle = torch.full_like(weight.scale, 2.0 ** (weight.bits - 1))
    zero = (middle if weight.zero is None else weight.zero).T.to(torch.uint8)
    stored = zero if v2 else zero - 1 & (2**weight.bits - 1)
    return {
        f"{module}.qweight": pack(codes, weight.bits).T.contiguous(),
        f"{module}.qzeros": pack(stored.contiguous(), weight.bits),
        f"{module}.scales": weight.scale.T.half().contiguous(),
        f"{module}.g_idx": groups,
    }


def gptq_config(bits: int, group: int, *, symmetric: bool, act_order: bool, v2: bool = False) -> dict[str, Any]:
    assert bits in ONES
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": act_order,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
        "lm_head": False,
    }


def packed_tensors(module: str, weight: IntWeight, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """compressed-tensors `pack-quantized`."""
    outputs, inputs = weight.codes.shape
    order = torch.arange(inputs) if weight.columns is None else weight.columns
    codes = torch.empty_like(weight.codes)
    codes[:, order] = weight.codes
    tensors = {
        f"{module}.weight_packed": pack(codes, weight.bits),
        f"{module}.weight_scale": weight.scale.to(dtype).contiguous(),
        f"{module}.weight_shape": torch.tensor([outputs, inputs]),
    }
    if weight.zero is not None:
        zero = weight.zero.to(torch.uint8)
        tensors[f"{module}.weight_zero_point"] = pack(zero.T.contiguous(), weight.bits).T.contiguous()
    if weight.columns is not None:
        groups = torch.empty(inputs, dtype=torch.int32)
        groups[order] = (torch.arange(inputs) // weight.group).to(torch.int32)
        tensors[f"{module}.weight_g_idx"] = groups
    return tensors


def byte_tensors(module: str, weight: IntWeight) -> Tensors:
    """compressed-tensors `int-quantized`, scales in float32."""
    return {
        f"{module}.weight": (weight.codes.to(torch.int16) - 128).to(torch.int8),
        f"{module}.weight_scale": weight.scale.contiguous(),
    }


def float_tensors(module: str, weight: FloatWeight, input_scale: float | None = None) -> Tensors:
    """Tiles as DeepSeek stores them (`weight_scale_inv`), else a scale per output channel."""
    name = "weight_scale" if weight.block is None else "weight_scale_inv"
    tensors = {f"{module}.weight": weight.codes, f"{module}.{name}": weight.scale.contiguous()}
    if input_scale is not None:
        tensors[f"{module}.input_scale"] = torch.tensor(input_scale)
    return tensors


def fp8_config(block: tuple[int, int] | None, *, static: bool = False) -> dict[str, Any]:
    config: dict[str, Any] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "static" if static else "dynamic",
        "modules_to_not_convert": ["lm_head"],
    }
    return config if block is None else config | {"weight_block_size": list(block)}


def compressed_config(layout: str, weights: dict[str, Any], acts: dict[str, Any] | None) -> dict[str, Any]:
    """With one scheme for all linear layers but the head. `weights` and `acts` over the defaults of the library."""
    defaults = {
        "num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "strategy": None, "block_structure": None,
        "dynamic": False, "actorder": None, "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": defaults | weights,
        "input_activations": None if acts is None else defaults | acts,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def int8_config() -> dict[str, Any]:
    return compressed_config(
        "int-quantized", {"strategy": "channel"}, {"strategy": "token", "dynamic": True, "observer": None}
    )
