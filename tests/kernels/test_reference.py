"""The oracle itself, against independent formulas and other libraries: everything else is compared with it."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels import dispatch
from kernels.contracts import KernelError, QuantizedWeight
from kernels.gguf_formats import BLOCKS
from kernels.reference.dequantize import dequantize

OPS = dispatch.load("reference", device="cpu")


def test_transformers_imports_with_our_kernels_package_on_the_path() -> None:
    code = "import kernels, transformers; assert not hasattr(kernels, '__version__'); print(transformers.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_itself_imports_no_torch() -> None:
    code = "import sys, kernels; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_rms_norm_agrees_with_torch() -> None:
    x, weight = torch.randn(5, 123), torch.randn(123)
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), F.rms_norm(x, (123,), weight, 1e-5))
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5, 1.0), F.rms_norm(x, (123,), weight + 1, 1e-5))


def test_rope_turns_each_pair_by_its_angle() -> None:
    q, k = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    frequencies = 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    angles = torch.arange(10).unsqueeze(1) * frequencies
    positions = torch.tensor([0, 4, 9])
    pairs = torch.complex(q[..., :4], q[..., 4:])
    expected = pairs * torch.polar(torch.ones(3, 4), angles[positions]).unsqueeze(1)
    OPS.rope(q, k, angles.cos(), angles.sin(), positions)
    torch.testing.assert_close(q, torch.cat((expected.real, expected.imag), dim=-1))


@pytest.mark.parametrize("window", [None, 5])
def test_paged_attention_agrees_with_torch_on_contiguous_keys(window: int | None) -> None:
    tokens, heads, kv_heads, dim, block = 13, 6, 2, 16, 4
    cache = OPS.allocate_kv_cache(8, block, kv_heads, dim, torch.float32, "cpu")
    table = torch.tensor([[5, 2, 7, 0]], dtype=torch.int32)
    slots = torch.tensor([int(table[0, i // block]) * block + i % block for i in range(tokens)])
    q, k, v = torch.randn(tokens, heads, dim), torch.randn(tokens, kv_heads, dim), torch.randn(tokens, kv_heads, dim)
    OPS.kv_write(cache, k, v, slots)
    starts, lengths = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    plan = OPS.plan_attention(starts, lengths, table, block, heads, kv_heads, dim)
    i, j = torch.arange(tokens).unsqueeze(1), torch.arange(tokens)
    mask = (j <= i) if window is None else (j <= i) & (j > i - window)
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(OPS.paged_attention(q, cache, plan, 0.3, window), expected.transpose(0, 1))


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_dequantized_blocks_equal_the_gguf_package(name: str) -> None:
    kind = getattr(gguf.GGMLQuantizationType, name)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(7).integers(0, 256, (6, 4 * size), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    got = dequantize(QuantizedWeight(torch.from_numpy(raw), name, 4 * elements))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, equal_nan=True)


def test_philox_matches_the_published_vectors() -> None:
    """Random123's kat_vectors: counter 0, key 0 gives 6627e8d5 e169c58d ...; pi digits with counter high words 0."""
    first = OPS.philox_uniform(torch.tensor([0]), torch.tensor([0])).item()
    assert first == ((0x6627E8D5 >> 5) * 67108864 + (0xE169C58D >> 6)) / 2**53


def test_draws_follow_the_truncated_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]]).expand(4000, -1)
    rows = logits.shape[0]
    uniforms = OPS.philox_uniform(torch.full((rows,), 11), torch.arange(rows))
    ids = OPS.sample(
        logits,
        torch.full((rows,), 0.5),
        torch.zeros(rows, dtype=torch.int32),
        torch.full((rows,), 0.95),
        torch.zeros(rows),
        uniforms,
    )
    expected = torch.softmax(logits[0, :2] / 0.5, dim=0)
    share = torch.bincount(ids, minlength=5) / rows
    assert share[2:].sum() == 0
    assert abs(float(share[0] - expected[0])) < 4 * float((expected[0] * expected[1] / rows) ** 0.5)


def test_a_wrong_width_names_what_was_found() -> None:
    with pytest.raises(KernelError, match=r"\(2, 7\), expected \[rows, 8\]"):
        OPS.rms_norm(torch.zeros(2, 7), torch.ones(8), 1e-5)


def test_naming_a_back_end_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelError, match="not cuda"):
        dispatch.load("triton", device="cpu")
