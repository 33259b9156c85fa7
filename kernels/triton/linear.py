"""Linear layers. Dense products run in torch (cuBLAS), which is faster than ours; codes run in `product.multiply`.

Ours are dense only where torch cannot keep a promise: under determinism, since the library sums in an order that
depends on the number of rows, and for float32 results on a device without that product. Weights of codes are widened
once for `MANY` rows and more, where a product is bound by arithmetic and not by memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from kernels.contracts import KernelError, PackedLinear, Weight, as_weights, check_quantization
from kernels.triton.launch import Argument, Constant, Schedule, aligned, launch
from kernels.triton.packing import ProductWeight, pack
from kernels.triton.product import CHUNK, PARTS, add_constants, add_parts, multiply, widen
from kernels.triton.quantize_rows import round_activations
from kernels.triton.target import capability, on_gpu
from kernels.triton.tiles import Tile, choose, constants_of, splits_of, step_of

MANY = 256
"""Rows, from which AutoAWQ and vLLM also take the dense product."""
MOST_WIDENED = 1 << 28
"""Weights that are widened at once, half a gigabyte of bfloat16: a vocabulary's are more, and are never."""


def pack_linear(
    weight: Weight | Sequence[Weight],
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    quantization: str | None = None,
    deterministic: bool = False,
) -> PackedLinear:
    weights = as_weights(weight)
    check_quantization(weights, quantization)
    if dtype is None:
        dtype = weights[0].dtype if isinstance(weights[0], Tensor) else torch.float32
    packed = pack(weights, dtype, quantization)
    outputs, inputs = packed.outputs, packed.inputs
    if bias is not None and bias.shape != (outputs,):
        raise KernelError(f"pack_linear: bias {tuple(bias.shape)}, expected ({outputs},)")
    nbytes = sum(tensor.nbytes for tensor in packed.tensors)
    return PackedLinear(outputs, inputs, dtype, quantization, deterministic, bias, packed, nbytes)


def linear(x: Tensor, packed: PackedLinear, out_dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise KernelError(f"linear: x has shape {tuple(x.shape)}, expected [rows, {packed.in_features}]")
    weight: ProductWeight = packed.data
    wanted, shape = out_dtype or x.dtype, (x.shape[0], packed.out_features)
    if out is not None and (tuple(out.shape) != shape or not out.is_contiguous() or out.dtype is not wanted):
        raise KernelError(f"linear: out is {out.dtype} {tuple(out.shape)}, expected contiguous {wanted} {shape}")
    small = packed.out_features * packed.in_features <= MOST_WIDENED
    many = not packed.deterministic and x.shape[0] >= MANY and small
    if weight.form == "dense" and not packed.deterministic and (wanted is packed.dtype or on_gpu(x)):
        y = _dense(x.to(packed.dtype), weight.weight, packed.bias, wanted)
    elif many and weight.form in ("codes4", "codes8", "float8"):
        x = x if weight.columns is None else x.index_select(1, weight.columns)
        y = _dense(x.to(packed.dtype), widened(weight, packed.dtype), packed.bias, wanted)
    else:
        to = out if out is not None else torch.empty(shape, dtype=wanted, device=x.device)
        _multiply(x, packed, to)
        return to
    return y if out is None else out.copy_(y)


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None, wanted: torch.dtype) -> Tensor:
    if wanted is x.dtype:
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    if wanted is torch.float32 and on_gpu(x):
        y = torch.mm(x, weight.t(), out_dtype=torch.float32)
        return y if bias is None else y + bias.float()
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype)).to(wanted)


def _multiply(x: Tensor, packed: PackedLinear, out: Tensor) -> None:
    weight: ProductWeight = packed.data
    rows = x.shape[0]
    x, x_scale = activations(x, weight, packed.dtype)
    bias = packed.bias
    if weight.correction is not None:
        bias = weight.correction if bias is None else weight.correction + bias.float()
    run_product(x, x_scale, weight, bias, out, *linear_constants(weight, None if packed.deterministic else rows))


def run_product(
    x: Tensor,
    x_scale: Tensor | None,
    weight: ProductWeight,
    bias: Tensor | None,
    out: Tensor,
    constants: dict[str, Constant],
    schedule: Schedule,
) -> None:
    """One product in one tile: `x` as `activations` gives it, `constants` as `linear_constants`."""
    rows, splits = x.shape[0], int(constants["SPLITS"] or 1)
    to = out if splits == 1 else torch.empty(splits, *out.shape, dtype=torch.float32, device=out.device)
    grid = (
        triton.cdiv(rows, int(constants["BLOCK_M"] or 1)),
        triton.cdiv(weight.outputs, int(constants["BLOCK_N"] or 1)),
        splits,
    )
    launch(multiply, grid, product_arguments(x, x_scale, weight, bias, to, rows), constants, schedule)
    if splits > 1:
        added, plain = add_constants(weight.outputs, splits)
        pieces = triton.cdiv(weight.outputs, int(added["BLOCK"] or 1))
        launch(add_parts, (rows, pieces), {"parts": to, "out": out, "rows": rows}, added, plain)


def activations(x: Tensor, weight: ProductWeight, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """`x` as the product wants it: its columns in order, and rounded to codes with scales where the form says so."""
    if weight.columns is not None:
        x = x.index_select(1, weight.columns)
    if not weight.x_group:
        return aligned(x.to(dtype)), None
    to = "int8" if weight.form == "int8" else "fp8"
    return round_activations(x, to, weight.x_group, weight.input_scale, weight.input_zero)


def product_arguments(
    x: Tensor, x_scale: Tensor | None, weight: ProductWeight, bias: Tensor | None, out: Tensor, rows: int
) -> dict[str, Argument]:
    """Of `multiply`, without experts."""
    return {
        "x": x, "weight": weight.weight, "scale": weight.scale, "offset": weight.offset, "x_scale": x_scale,
        "bias": bias, "shares": None, "order": None, "owners": None, "out": out, "rows": rows,
    }  # fmt: skip


def form_constants(weight: ProductWeight) -> dict[str, Constant]:
    """What the weight alone decides."""
    return {
        "FORM": weight.form,
        "OUTPUTS": weight.outputs,
        "INPUTS": weight.inputs,
        "PITCH": weight.pitch,
        "GROUP": weight.group,
        "GROUPS": weight.groups,
        "X_GROUPS": triton.cdiv(weight.inputs, weight.x_group) if weight.x_group else 1,
        "OFFSET": weight.offset_kind,
        "PARTS": PARTS.get(weight.form, 1),
        "BLOCK_K": CHUNK[weight.form],
    }


def linear_constants(weight: ProductWeight, rows: int | None) -> tuple[dict[str, Constant], Schedule]:
    """`rows` None: for any number of them, in one order of sums."""
    step = step_of(rows)
    return tile_constants(weight, step, choose(weight.form, step, weight.outputs, capability(weight.weight.device)))


def tile_constants(weight: ProductWeight, step: int, tile: Tile) -> tuple[dict[str, Constant], Schedule]:
    chunks = triton.cdiv(weight.inputs, CHUNK[weight.form])
    constants, schedule = constants_of(tile, splits_of(step, tile, weight.outputs, chunks))
    return form_constants(weight) | constants | {"SHARED_BY": 1}, schedule


def widened(weight: ProductWeight, dtype: torch.dtype) -> Tensor:
    """`[outputs, inputs]` of one weight of codes, in the order of its codes."""
    out = torch.empty(weight.outputs, weight.inputs, dtype=dtype, device=weight.weight.device)
    constants = form_constants(weight) | {"BLOCK_N": 64}
    del constants["FORM"], constants["X_GROUPS"]
    grid = (triton.cdiv(weight.inputs, CHUNK[weight.form]), triton.cdiv(weight.outputs, 64))
    arguments: dict[str, Argument] = {
        "weight": weight.weight, "scale": weight.scale, "offset": weight.offset, "out": out,
    }  # fmt: skip
    launch(widen, grid, arguments, constants, Schedule(num_warps=4, num_stages=1))
    return out
