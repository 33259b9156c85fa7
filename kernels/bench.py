"""Times each op on each usable back end against what this machine itself can copy and multiply.

`bench_kernels() -> list[KernelTiming]`. Shapes are those of a 135M-parameter Llama with 64 running sequences unless
said. Owns measuring only: bytes are what an ideal kernel must move, flops what the formula needs. The best of several
runs is kept, since every other one met somebody else on the core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import dispatch
from kernels.contracts import DecoderLayer, KernelError, Ops

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCABULARY, LAYERS = 576, 9, 3, 64, 1536, 49152, 30
BLOCK = 16
MINIMUM_S = 0.15
"""Least time spent on one case after a warm-up run."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured best of this machine: bytes/s of a copy (read plus write), flop/s of a float32 product."""

    copy_gb_per_s: float
    matmul_gflop_per_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class KernelTiming:
    op: str
    backend: str
    case: str
    dtype: str
    microseconds: float
    gb_per_s: float
    gflop_per_s: float
    of_copy: float
    """Share of the copy ceiling. Above 1 where the data stay in cache."""
    of_matmul: float
    """Share of the float32 matmul ceiling. Above 1 where narrower arithmetic is used."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    op: str
    case: str
    dtype: torch.dtype
    run: Callable[[], object]
    nbytes: float
    flops: float


def measure_ceilings() -> Ceilings:
    source, target = torch.ones(64 << 20, dtype=torch.uint8), torch.empty(64 << 20, dtype=torch.uint8)
    copy_s = best_seconds(lambda: target.copy_(source))
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    matmul_s = best_seconds(lambda: torch.mm(a, b))
    return Ceilings(2 * source.nbytes / copy_s / 1e9, 2 * 1024**3 / matmul_s / 1e9, torch.get_num_threads())


def best_seconds(run: Callable[[], object]) -> float:
    """The shortest of the runs that fit into `MINIMUM_S` (at least three)."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while spent < MINIMUM_S or runs < 3:
        started = time.perf_counter()
        run()
        took = time.perf_counter() - started
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def bench_kernels(
    backends: Sequence[dispatch.Backend] | None = None, ops: Sequence[str] | None = None
) -> list[KernelTiming]:
    """Every case of every usable back end (or those named), reference last. `ops` keeps only those ops."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cpu":
        raise KernelError("bench_kernels measures the CPU back ends; no timer for this device yet")
    names = list(backends) if backends else usable_backends(device)
    ceilings = measure_ceilings()
    rows = []
    for name in names:
        loaded = dispatch.load(name, device=device)
        for case in cases(loaded, small=name == "reference"):
            if ops is None or case.op in ops:
                rows.append(_time(case, name, ceilings))
    return rows


def usable_backends(device: torch.device) -> list[dispatch.Backend]:
    names: tuple[dispatch.Backend, ...] = ("triton", "cpu", "reference")
    return [name for name in names if dispatch.PROBES[name](device).usable]


def _time(case: Case, backend: str, ceilings: Ceilings) -> KernelTiming:
    seconds = best_seconds(case.run)
    bandwidth, speed = case.nbytes / seconds / 1e9, case.flops / seconds / 1e9
    return KernelTiming(
        case.op,
        backend,
        case.case,
        str(case.dtype).removeprefix("torch."),
        seconds * 1e6,
        bandwidth,
        speed,
        bandwidth / ceilings.copy_gb_per_s,
        speed / ceilings.matmul_gflop_per_s,
    )


def cases(ops: Ops, *, small: bool = False) -> list[Case]:
    """`small` leaves out what takes the reference seconds."""
    torch.manual_seed(0)
    found = [*_row_cases(ops), *_linear_cases(ops), *_attention_cases(ops), *_sampling_cases(ops, 4 if small else 64)]
    return found if small else [*found, *_stack_cases(ops)]


def _row_cases(ops: Ops) -> list[Case]:
    rows, dtype = 64, torch.bfloat16
    x, weight = torch.randn(rows, HIDDEN).to(dtype), torch.ones(HIDDEN, dtype=dtype)
    gates = torch.randn(rows, 2 * INNER).to(dtype)
    q, k = torch.randn(rows, HEADS, DIM).to(dtype), torch.randn(rows, KV_HEADS, DIM).to(dtype)
    angles, positions = torch.rand(2048, DIM // 2), torch.randint(0, 2048, (rows,))
    cos, sin = angles.cos(), angles.sin()
    size, shape = x.nbytes, f"{rows}x{HIDDEN}"
    return [
        Case("rms_norm", shape, dtype, lambda: ops.rms_norm(x, weight, 1e-5), 2 * size, 4 * x.numel()),
        Case("add_rms_norm", shape, dtype, lambda: ops.add_rms_norm(x, x, weight, 1e-5), 4 * size, 5 * x.numel()),
        Case("layer_norm", shape, dtype, lambda: ops.layer_norm(x, weight, None, 1e-5), 2 * size, 7 * x.numel()),
        Case(
            "silu_mul", f"{rows}x{2 * INNER}", dtype, lambda: ops.silu_mul(gates), 1.5 * gates.nbytes, 5 * gates.numel()
        ),
        Case(
            "rope",
            f"{rows}x{HEADS}+{KV_HEADS}x{DIM}",
            dtype,
            lambda: ops.rope(q, k, cos, sin, positions),
            2 * (q.nbytes + k.nbytes),
            3 * (q.numel() + k.numel()),
        ),
    ]


def _linear_cases(ops: Ops) -> list[Case]:
    found = []
    dtype = torch.bfloat16
    weight = (torch.randn(2 * INNER, HIDDEN) / HIDDEN**0.5).to(dtype)
    for quantization in (None, "int8", "int4"):
        packed = ops.pack_linear(weight, dtype=dtype, quantization=quantization)
        for rows in (1, 8, 64, 256):
            x = torch.randn(rows, HIDDEN).to(dtype)
            found.append(
                Case(
                    "linear",
                    f"{rows}x{HIDDEN} to {2 * INNER} {quantization or ''}".strip(),
                    dtype,
                    lambda x=x, packed=packed: ops.linear(x, packed),  # type: ignore[misc]
                    packed.nbytes + x.nbytes + rows * 2 * INNER * 2,
                    2 * rows * weight.numel(),
                )
            )
    return found


def _batch(ops: Ops, query: int, length: int, sequences: int) -> tuple[Any, Tensor, Tensor, int]:
    """(plan, positions, slots, blocks) of equal sequences that ask for their last `query` positions."""
    per_sequence = -(-length // BLOCK)
    tables = torch.randperm(sequences * per_sequence).to(torch.int32).view(sequences, per_sequence)
    starts = torch.arange(sequences + 1, dtype=torch.int32) * query
    lengths = torch.full((sequences,), length, dtype=torch.int32)
    plan = ops.plan_attention(starts, lengths, tables, BLOCK, HEADS, KV_HEADS, DIM)
    keys = torch.arange(length - query, length)
    slots = tables.long()[:, keys // BLOCK] * BLOCK + keys % BLOCK
    return plan, keys.repeat(sequences), slots.flatten(), sequences * per_sequence


def _attention_cases(ops: Ops) -> list[Case]:
    found = []
    dtype = torch.bfloat16
    for query, length, sequences in ((1, 512, 64), (1, 2048, 1), (256, 256, 1), (64, 1024, 1)):
        plan, _, slots, blocks = _batch(ops, query, length, sequences)
        cache = ops.allocate_kv_cache(blocks, BLOCK, KV_HEADS, DIM, dtype, "cpu")
        cache.key.fill_(0.1)
        cache.value.fill_(0.1)
        rows = query * sequences
        q, key = torch.randn(rows, HEADS, DIM).to(dtype), torch.randn(rows, KV_HEADS, DIM).to(dtype)
        visible = sequences * (query * (length - query) + query * (query + 1) / 2)
        name = f"{sequences} x {query} queries, {length} keys"
        found.append(
            Case(
                "paged_attention",
                name,
                dtype,
                lambda q=q, cache=cache, plan=plan: ops.paged_attention(q, cache, plan, DIM**-0.5),  # type: ignore[misc]
                sequences * length * KV_HEADS * DIM * 4 + 2 * q.nbytes,
                4 * visible * HEADS * DIM,
            )
        )
        if (query, sequences) == (1, 64):
            found.append(
                Case(
                    "kv_write",
                    f"{rows} rows",
                    dtype,
                    lambda key=key, cache=cache, slots=slots: ops.kv_write(cache, key, key, slots),  # type: ignore[misc]
                    4 * key.nbytes,
                    0,
                )
            )
    return found


def _sampling_cases(ops: Ops, rows: int) -> list[Case]:
    logits = torch.randn(rows, VOCABULARY) * 3
    ids = torch.zeros(rows, dtype=torch.int64)
    uniforms = ops.philox_uniform(ids, torch.arange(rows))
    heat, top_p = torch.full((rows,), 0.8), torch.full((rows,), 0.95)
    top_k, min_p = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows)
    shape = f"{rows}x{VOCABULARY}"
    size, work = logits.nbytes, logits.numel()
    return [
        Case("greedy", shape, logits.dtype, lambda: ops.greedy(logits), size, 2 * work),
        Case(
            "sample",
            f"{shape} top_p 0.95",
            logits.dtype,
            lambda: ops.sample(logits, heat, top_k, top_p, min_p, uniforms),
            size,
            4 * work,
        ),
        Case("row_stats", shape, logits.dtype, lambda: ops.row_stats(logits, ids), size, 5 * work),
    ]


def _stack_cases(ops: Ops) -> list[Case]:
    """All layers in one call, with weights too large for the cache: the step that serving is made of."""
    found = []
    dtype = torch.bfloat16
    for quantization in (None, "int8", "int4"):
        layers = [_layer(ops, dtype, quantization) for _ in range(LAYERS)]
        weights = sum(p.nbytes for layer in layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down))
        parameters = LAYERS * sum(
            p.out_features * p.in_features for p in (layers[0].qkv, layers[0].o, layers[0].gate_up, layers[0].down)
        )
        for rows, length in ((1, 160), (64, 160)):
            plan, positions, slots, blocks = _batch(ops, 1, length, rows)
            caches = [ops.allocate_kv_cache(blocks, BLOCK, KV_HEADS, DIM, dtype, "cpu") for _ in layers]
            for cache in caches:
                cache.key.fill_(0.1)
                cache.value.fill_(0.1)
            angles = torch.rand(length, DIM // 2)
            stack = ops.pack_stack(layers, caches, angles.cos(), angles.sin())
            hidden = torch.randn(rows, HIDDEN).to(dtype)
            keys = rows * length * KV_HEADS * DIM * 4 * LAYERS
            found.append(
                Case(
                    "decoder_stack",
                    f"{LAYERS} layers, {rows} decodes {quantization or ''}".strip(),
                    dtype,
                    lambda h=hidden, s=stack, p=plan, at=positions, to=slots: ops.decoder_stack(  # type: ignore[misc]
                        h.clone(), s, p, at, to
                    ),
                    weights + keys,
                    2 * rows * parameters + 4 * rows * length * HEADS * DIM * LAYERS,
                )
            )
    return found


def _layer(ops: Ops, dtype: torch.dtype, quantization: str | None) -> DecoderLayer:
    def pack(outputs: int, inputs: int) -> Any:
        weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        return ops.pack_linear(weight, dtype=dtype, quantization=quantization)

    return DecoderLayer(
        torch.ones(HIDDEN),
        torch.ones(HIDDEN),
        pack((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        pack(HIDDEN, HEADS * DIM),
        pack(2 * INNER, HIDDEN),
        pack(HIDDEN, INNER),
        HEADS,
        KV_HEADS,
        DIM,
        1e-5,
        DIM**-0.5,
    )
