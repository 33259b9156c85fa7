"""Every GGUF encoding against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.weights.dequantize import dequantize
from kernels.gguf_formats import BLOCKS, FORMATS, GgufFormat

QUANTIZED = list(BLOCKS.values())


def random_blocks(quant: GgufFormat, rows: int, blocks: int) -> np.ndarray:
    """Random bytes but for the float16 fields, where they would make NaN."""
    rng = np.random.default_rng(quant.id)
    size = quant.nbytes
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in quant.halves_at:
        scale = rng.normal(0, 0.05, (rows, blocks)).astype(np.float16)
        raw[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("quant", QUANTIZED, ids=lambda quant: quant.name)
def test_blocks_decode_as_in_the_reference_package(quant: GgufFormat) -> None:
    raw = random_blocks(quant, rows=37, blocks=3)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(quant.id))
    shape = (37, 3 * quant.elements)
    ours = dequantize(raw.ravel(), quant, shape, torch.float32)
    np.testing.assert_array_equal(ours.numpy(), expected)


def test_a_tensor_that_several_threads_decode_comes_out_whole() -> None:
    raw = random_blocks(FORMATS["Q8_0"], rows=400, blocks=50)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)
    ours = dequantize(raw.ravel(), FORMATS["Q8_0"], (400, 1600), torch.float32)
    np.testing.assert_array_equal(ours.numpy(), expected)


def test_threads_follow_the_callers_inference_mode() -> None:
    raw = random_blocks(FORMATS["Q8_0"], rows=400, blocks=50)
    with torch.inference_mode():
        ours = dequantize(raw.ravel(), FORMATS["Q8_0"], (400, 1600), torch.float32)
    assert ours.is_inference()


def test_bfloat16_is_the_float32_value_rounded_once() -> None:
    raw = random_blocks(FORMATS["Q4_K"], rows=5, blocks=2).ravel()
    wide = dequantize(raw, FORMATS["Q4_K"], (5, 512), torch.float32)
    assert torch.equal(dequantize(raw, FORMATS["Q4_K"], (5, 512), torch.bfloat16), wide.bfloat16())


@pytest.mark.parametrize(
    ("quant", "dtype"),
    [(FORMATS["F32"], torch.float32), (FORMATS["F16"], torch.float16), (FORMATS["BF16"], torch.bfloat16)],
    ids=["f32", "f16", "bf16"],
)
def test_plain_tensors_are_read_as_they_are(quant: GgufFormat, dtype: torch.dtype) -> None:
    values = torch.randn(3, 8).to(dtype)
    assert torch.equal(dequantize(values.view(torch.uint8).flatten().numpy(), quant, (3, 8), dtype), values)
