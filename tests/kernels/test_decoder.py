"""The fused decoder stack against the same layers written with single reference ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.contracts import DecoderLayer, KernelError, Ops
from tests.kernels.conftest import Batch

VARIANTS: dict[str, Any] = {
    "llama": {},
    "qwen2": {"bias": True},
    "qwen3": {"head_norms": True},
    "mistral": {"window": 20},
    "gelu": {"activation": "gelu_tanh", "offset": 1.0},
    "softcap": {"softcap": 5.0},
}


@dataclass
class Model:
    """Random weights of a small decoder; packs them for any back end."""

    dtype: torch.dtype = torch.float32
    quantization: str | None = None
    layers: int = 3
    hidden: int = 48
    heads: int = 6
    kv_heads: int = 2
    dim: int = 16
    inner: int = 80
    bias: bool = False
    head_norms: bool = False
    window: int | None = None
    softcap: float | None = None
    activation: str = "silu"
    offset: float = 0.0

    def __post_init__(self) -> None:
        qkv = (self.heads + 2 * self.kv_heads) * self.dim
        shapes = {
            "qkv": (qkv, self.hidden),
            "o": (self.hidden, self.heads * self.dim),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }
        self.weights = [
            {name: (torch.randn(shape) / shape[1] ** 0.5).to(self.dtype) for name, shape in shapes.items()}
            for _ in range(self.layers)
        ]
        self.norms = [torch.rand(2, self.hidden) + 0.5 for _ in range(self.layers)]
        self.qk = [torch.rand(2, self.dim) + 0.5 for _ in range(self.layers)]
        self.biases = [torch.randn(qkv) / 4 for _ in range(self.layers)]
        angles = torch.arange(300).unsqueeze(1) * 10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim)
        self.cos, self.sin = angles.cos(), angles.sin()

    def pack(self, ops: Ops) -> list[DecoderLayer]:
        packed = []
        for i, weights in enumerate(self.weights):
            linears = {
                name: ops.pack_linear(
                    weight,
                    self.biases[i] if self.bias and name == "qkv" else None,
                    self.dtype,
                    self.quantization,
                )
                for name, weight in weights.items()
            }
            packed.append(
                DecoderLayer(
                    self.norms[i][0],
                    self.norms[i][1],
                    **linears,
                    num_heads=self.heads,
                    num_kv_heads=self.kv_heads,
                    head_dim=self.dim,
                    eps=1e-5,
                    scale=self.dim**-0.5,
                    norm_offset=self.offset,
                    activation=self.activation,
                    q_norm=self.qk[i][0] if self.head_norms else None,
                    k_norm=self.qk[i][1] if self.head_norms else None,
                    window=self.window,
                    softcap=self.softcap,
                )
            )
        return packed

    def run(self, ops: Ops, batch: Batch, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        caches = [batch.cache(ops) for _ in range(self.layers)]
        stack = ops.pack_stack(self.pack(ops), caches, self.cos, self.sin)
        pairs = list(zip(batch.query_lens, batch.kv_lens, strict=True))
        positions = torch.cat([torch.arange(kv - query, kv) for query, kv in pairs])
        slots = torch.cat([batch.slots(s)[kv - query :] for s, (query, kv) in enumerate(pairs)])
        return ops.decoder_stack(hidden.clone(), stack, batch.plan(ops), positions, slots, wanted)

    def batch(self) -> Batch:
        return Batch([1, 9, 1, 20], [30, 9, 1, 75], self.heads, self.kv_heads, self.dim, dtype=self.dtype)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_stack_equals_its_single_ops(cpu: Ops, reference: Ops, name: str) -> None:
    model = Model(**VARIANTS[name])
    batch = model.batch()
    hidden = torch.randn(31, model.hidden)
    got, expected = model.run(cpu, batch, hidden), model.run(reference, batch, hidden)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_bfloat16_is_as_near_to_float32_as_the_single_ops_are(cpu: Ops, reference: Ops) -> None:
    model = Model(torch.bfloat16)
    batch = model.batch()
    hidden = torch.randn(31, model.hidden).bfloat16()
    got, expected = model.run(cpu, batch, hidden), model.run(reference, batch, hidden)
    model.dtype = batch.dtype = torch.float32
    batch.keys, batch.values = [k.float() for k in batch.keys], [v.float() for v in batch.values]
    truth = model.run(reference, batch, hidden.float())
    for ours, theirs, exact in zip(got, expected, truth, strict=True):
        assert float((ours - exact).norm()) <= 1.1 * float((theirs - exact).norm())


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_stacks_stay_near(cpu: Ops, reference: Ops, quantization: str) -> None:
    model = Model(quantization=quantization, hidden=64, inner=96)
    batch = model.batch()
    hidden = torch.randn(31, model.hidden)
    got = model.run(cpu, batch, hidden)[1]
    expected = model.run(reference, batch, hidden)[1]
    assert float((got - expected).norm() / expected.norm()) < 0.03


def test_more_rows_than_one_band_of_the_mlp(cpu: Ops, reference: Ops) -> None:
    model = Model(layers=1)
    batch = Batch([290, 1], [290, 40], model.heads, model.kv_heads, model.dim)
    hidden = torch.randn(291, model.hidden)
    got, expected = model.run(cpu, batch, hidden), model.run(reference, batch, hidden)
    torch.testing.assert_close(got[0], expected[0], atol=2e-4, rtol=2e-4)


def test_rows_that_do_not_match_the_plan_are_refused(cpu: Ops) -> None:
    model = Model(layers=1)
    with pytest.raises(KernelError, match="expects 31 rows of 48"):
        model.run(cpu, model.batch(), torch.randn(30, model.hidden))


def test_a_position_beyond_the_rotary_tables_is_refused(cpu: Ops) -> None:
    model = Model(layers=1)
    model.cos, model.sin = model.cos[:70], model.sin[:70]
    with pytest.raises(KernelError, match="outside the rotary tables"):
        model.run(cpu, model.batch(), torch.randn(31, model.hidden))


def test_a_qkv_that_does_not_match_its_heads_is_refused(cpu: Ops) -> None:
    model = Model(layers=1)
    batch = model.batch()
    layers = model.pack(cpu)
    layers[0].num_heads = 5
    with pytest.raises(KernelError, match="qkv has 160 outputs"):
        cpu.pack_stack(layers, [batch.cache(cpu)], model.cos, model.sin)


@pytest.mark.parametrize("rows", [[0, 9, 10, 30], [30], list(range(31)), []])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wanted_rows_have_the_bits_that_they_have_among_all(cpu: Ops, rows: list[int], dtype: torch.dtype) -> None:
    model = Model(dtype)
    batch, hidden = model.batch(), torch.randn(31, model.hidden).to(dtype)
    everything = model.run(cpu, batch, hidden)
    for some, all_rows in zip(
        model.run(cpu, batch, hidden, torch.tensor(rows, dtype=torch.int64)), everything, strict=True
    ):
        assert torch.equal(some, all_rows[rows])


def test_wanted_rows_of_the_reference_are_its_rows(reference: Ops) -> None:
    model = Model()
    batch, hidden = model.batch(), torch.randn(31, model.hidden)
    some = model.run(reference, batch, hidden, torch.tensor([2, 5]))[1]
    assert torch.equal(some, model.run(reference, batch, hidden)[1][[2, 5]])


@pytest.mark.parametrize("rows", [[5, 2], [3, 3], [-1], [31]])
def test_wanted_rows_that_are_not_ascending_rows_of_the_step_are_refused(cpu: Ops, rows: list[int]) -> None:
    model = Model()
    with pytest.raises(KernelError, match="wanted rows"):
        model.run(cpu, model.batch(), torch.randn(31, model.hidden), torch.tensor(rows))
