"""The one contract of every op: names, shapes, dtypes and the values that pass between ops.

`Ops` below is the truth; each back end (`kernels/reference`, `kernels/cpu`, `kernels/triton`) offers functions of the
same names and signatures, one op (or one tight family) per file, file names in `OP_FILES`. Knows tensors, rows, slots
and blocks; must not know sequences, tenants or tokens of text. Signatures are stable; additions are optional keywords.
The values that pass through are defined in `values.py` and `weights.py` and exported here.

Rules that hold for all ops
- `x` is `[rows, hidden]`, contiguous in its last dimension; sums run in float32, the result has the dtype of `x`.
- A row's result never depends on NaN or Inf in another row, nor on unused KV slots.
- `dispatch.load(deterministic=True)` promises more: bitwise the same row alone, in any batch and in any chunking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kernels.values import AttentionPlan as AttentionPlan
from kernels.values import DecoderLayer as DecoderLayer
from kernels.values import DecoderStack as DecoderStack
from kernels.values import KVCache as KVCache
from kernels.values import PackedExperts as PackedExperts
from kernels.values import RowStats as RowStats
from kernels.weights import E4M3_MAX as E4M3_MAX
from kernels.weights import QUANTIZATIONS as QUANTIZATIONS
from kernels.weights import CodedWeight as CodedWeight
from kernels.weights import FloatWeight as FloatWeight
from kernels.weights import IntWeight as IntWeight
from kernels.weights import KernelError as KernelError
from kernels.weights import PackedLinear as PackedLinear
from kernels.weights import QuantizedWeight as QuantizedWeight
from kernels.weights import Weight as Weight
from kernels.weights import as_weights as as_weights
from kernels.weights import check_quantization as check_quantization
from kernels.weights import width as width

OP_FILES: dict[str, str] = {
    "rms_norm": "rms_norm",
    "add_rms_norm": "rms_norm",
    "head_rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "rope": "rope",
    "silu_mul": "gated",
    "gelu_tanh_mul": "gated",
    "allocate_kv_cache": "kv_cache",
    "kv_write": "kv_cache",
    "read_kv": "kv_cache",
    "plan_attention": "paged_attention",
    "paged_attention": "paged_attention",
    "pack_linear": "linear",
    "linear": "linear",
    "quantize_rows": "quantize_rows",
    "route": "route",
    "pack_experts": "experts",
    "experts": "experts",
    "embedding": "embedding",
    "pack_stack": "decoder",
    "decoder_stack": "decoder",
    "philox_uniform": "philox",
    "greedy": "greedy",
    "sample": "sample",
    "row_stats": "row_stats",
    "apply_token_bitmask": "token_bitmask",
    "apply_penalties": "penalties",
}
"""op -> the file (module) that holds it in each back end."""

FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({"allocate_kv_cache", "kv_write", "read_kv", "plan_attention", "paged_attention"}),
    frozenset({"pack_linear", "linear"}),
    frozenset({"pack_experts", "experts"}),
    frozenset({"pack_stack", "decoder_stack"}),
)
"""Ops that share a back end's private layout: they are always chosen together."""

STACK_OPS = ("pack_stack", "decoder_stack")
STACK_PARTS: tuple[str, ...] = (
    "rms_norm",
    "add_rms_norm",
    "head_rms_norm",
    "rope",
    "silu_mul",
    "gelu_tanh_mul",
    "kv_write",
    "paged_attention",
    "linear",
)
"""The ops that a decoder stack is made of. A fused stack is chosen only where its back end was chosen for all of these;
elsewhere the reference stack calls the chosen ones, so that an op of any back end is reached."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Why an op runs where it runs. `off` maps each other back end to the reason that it is not used."""

    op: str
    backend: str
    detail: str = ""
    off: dict[str, str] = field(default_factory=dict)


class Ops(Protocol):
    """The ops that `dispatch.load` returns. Every back end implements these signatures."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * (weight + offset)`, arXiv 1910.07467. Gemma: `offset=1`."""

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`; the sum is rounded to the dtype of `x` before the norm.

        May reuse the storage of `x` and `residual`: both are dead after the call.
        """

    def head_rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """RMSNorm of each head of `x [rows, heads, dim]` with one `weight [dim]` (qk-norm)."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor: ...

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate `q [rows, heads, dim]` and `k [rows, kv_heads, dim]` in place, halves convention (neox).

        `cos`/`sin` are float32 `[max_positions, rotary/2]`; `positions` int64 `[rows]`; dimensions past `rotary` stay.
        """

    def silu_mul(self, x: Tensor) -> Tensor:
        """`silu(x[:, :n]) * x[:, n:]` for `x [rows, 2n]`."""

    def gelu_tanh_mul(self, x: Tensor) -> Tensor: ...

    def allocate_kv_cache(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> KVCache:
        """Uninitialized storage. Ops never read a slot that was not written. `dtype` float8_e4m3fn: values are divided
        by the scales of the cache, clamped and rounded when written. Raises `KernelError` for a dtype not offered."""

    def kv_write(self, cache: KVCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Store `key`/`value [rows, kv_heads, dim]` at `slot = block*block_size + offset` (int64); -1 skips the row."""

    def read_kv(self, cache: KVCache, slots: Tensor) -> tuple[Tensor, Tensor]:
        """`(key, value) [n, kv_heads, dim]` of int64 slots: for tests and block export. float32 from a float8 cache."""

    def plan_attention(
        self,
        query_start: Tensor,
        kv_len: Tensor,
        block_tables: Tensor,
        block_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int | None = None,
        deterministic: bool = False,
    ) -> AttentionPlan:
        """Geometry for `paged_attention`: int32 `query_start [S+1]`, `kv_len [S]` (after this step's writes),
        `block_tables [S, max_blocks]` (entries past the length are ignored). `window` only balances the work split.
        """

    def paged_attention(
        self,
        q: Tensor,
        cache: KVCache,
        plan: AttentionPlan,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of all rows, prefill chunks and decodes alike: `[rows, heads, dim]` in, the same out.

        Query head h reads kv head `h // (heads // kv_heads)`. `window`: position p sees keys `p-window < j <= p`.
        `softcap`: scores become `softcap * tanh(score / softcap)`. `sinks` float32 `[heads]`: a logit of each head that
        takes part in the softmax and has no value. Keys of this step must have been written before. A sequence without
        keys (`kv_len` 0, a padded row) gives zeros.
        """

    def pack_linear(
        self,
        weight: Weight | Sequence[Weight],
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        quantization: str | None = None,
        deterministic: bool = False,
    ) -> PackedLinear:
        """Pack `weight [out, in]` once. A sequence is stacked along `out` (fused qkv, gate_up). `dtype` is that of the
        activations (default: the weight's). `quantization` is one of `QUANTIZATIONS`. Raises `KernelError`.
        """

    def linear(
        self, x: Tensor, packed: PackedLinear, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """`x @ weight.T + bias`; `out_dtype=torch.float32` for logits. `out` contiguous `[rows, outputs]` of that dtype
        is written and returned, to spare the system fresh pages for a large result."""

    def quantize_rows(
        self, x: Tensor, to: str, group: int | None = None, scale: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """`(codes, scales)` of `x [rows, n]` with `x ~ codes * scales`: `to` is `int8` (symmetric, at most 127) or
        `fp8` (e4m3, at most 448). `scales` is float32 `[rows, 1]`, or `[rows, n / group]`; `scale` sets all of them.
        Codes are `x * (1 / scale)`, rounded to the nearest even and clamped. A row of zeros has codes of zero.
        """

    def route(
        self,
        logits: Tensor,
        topk: int,
        scoring: str = "softmax",
        bias: Tensor | None = None,
        groups: int = 1,
        topk_groups: int = 1,
        normalize: bool = False,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """`(experts int32, shares float32) [rows, topk]` of router logits `[rows, experts]`, the likeliest first.

        Scores are their `softmax` or `sigmoid`. Experts are chosen by logit, or by score plus `bias` where there is
        one; equal ones: the lowest number. Of `groups` (runs of experts) only the `topk_groups` best take part: a group
        is as good as its best expert, or as its two best together where there is a bias (DeepSeek V2, V3).
        Shares are scores without bias, divided by their sum if `normalize`, times `scale`.
        """

    def pack_experts(
        self,
        experts: Iterable[tuple[Sequence[Weight], Weight]],
        dtype: torch.dtype,
        quantization: str | None = None,
        deterministic: bool = False,
        local: range | None = None,
    ) -> PackedExperts:
        """Experts as `(gate and up to stack, down)`, read once and in order. `quantization` as in `pack_linear`.
        `local`: the numbers of those that are given, where others lie elsewhere; None: all, from 0."""

    def experts(
        self, x: Tensor, ids: Tensor, shares: Tensor, packed: PackedExperts, activation: str = "silu"
    ) -> Tensor:
        """Each row of `x [rows, hidden]` through its experts `ids`, times their `shares` (`[rows, topk]` both), summed
        in float32 in the order of `ids`. `activation` is `silu` or `gelu_tanh`. Experts elsewhere add nothing."""

    def embedding(self, ids: Tensor, table: Weight, dtype: torch.dtype | None = None) -> Tensor:
        """Rows `ids` (int64 `[n]`) of `table`, dequantized if need be. An id out of range raises `KernelError` where
        ids are on the host, and gives a row of zeros where they are on a device."""

    def pack_stack(
        self, layers: Sequence[DecoderLayer], caches: Sequence[KVCache], cos: Tensor, sin: Tensor
    ) -> DecoderStack: ...

    def decoder_stack(
        self,
        hidden: Tensor,
        stack: DecoderStack,
        plan: AttentionPlan,
        positions: Tensor,
        slot_mapping: Tensor,
        wanted: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """All layers in one call: `(hidden, residual)`; finish with `add_rms_norm(hidden, residual, final_norm)`.

        `hidden [rows, hidden]` is the scaled embedding; its storage may be reused. `wanted` (int64, ascending) names
        the rows of the result; what the last layer does behind its attention is then done for those alone.
        """

    def philox_uniform(self, seeds: Tensor, positions: Tensor) -> Tensor:
        """float64 in [0, 1) per row from Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = position."""

    def greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """`(argmax int64, its log-probability float32)` per row; equal logits: the lowest id. NaN never wins."""

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor
    ) -> Tensor:
        """One id per row: temperature, min_p, top_k, top_p, then the inverse of the CDF in id order at `uniforms`.

        `temperature`, `top_p`, `min_p` float32, `top_k` int32 (<= 0: off), `uniforms` float64, all `[rows]`, on the
        logits' device. temperature 0 is greedy. A row's result depends on that row alone. `-inf` logits never win.
        """

    def row_stats(self, logits: Tensor, token_ids: Tensor, topk: int = 0) -> RowStats:
        """Evidence about raw `logits [rows, vocab]` for the token chosen in each row."""

    def apply_token_bitmask(self, logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
        """In place: row `rows[i]` of logits gets -inf where bit `v % 32` of int32 `bitmask[i, v // 32]` is 0."""

    def apply_penalties(
        self,
        logits: Tensor,
        rows: Tensor,
        starts: Tensor,
        ids: Tensor,
        times: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
    ) -> None:
        """In place, row `rows[i]`, tokens `ids[starts[i]:starts[i + 1]]` (each once; all int64): a positive logit is
        divided by `repetition[i]`, another multiplied; then `frequency[i]` a time that it was generated (`times`, as
        long as `ids`) and, where that is not 0, `presence[i]` are taken away (float32)."""

    deterministic: bool

    def report(self) -> list[Choice]:
        """Per op: back end chosen and why the others are off."""


def check_rows(name: str, x: Tensor, width: int) -> None:
    """`x` must be `[rows, width]`."""
    if x.dim() != 2 or x.shape[1] != width:
        raise KernelError(f"{name}: x has shape {tuple(x.shape)}, expected [rows, {width}]")


def check_heads(name: str, num_heads: int, num_kv_heads: int) -> None:
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise KernelError(f"{name}: {num_heads} query heads cannot share {num_kv_heads} kv heads evenly")


def check_even(name: str, x: Tensor) -> None:
    if x.dim() != 2 or x.shape[1] % 2:
        raise KernelError(f"{name}: x has shape {tuple(x.shape)}, expected [rows, 2n]")
