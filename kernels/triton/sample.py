"""One draw per row without sorting the vocabulary: one program a row, which narrows the cut of top_k and top_p.

Masses are `exp((logit - largest) / temperature)` in float32, their sums are float64 in an order that the vocabulary
alone fixes. The cut lies in the order (mass down, id up), so exactly k ids survive top_k. It is found over the bits of
a mass, which order as masses do: each pass over the row counts how many masses reach each of `PROBES` thresholds, and
how much they weigh, until at most one mass is left between two of them.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError
from kernels.triton.greedy import NO_ID, NONE, best_of, logits_at, rows_of_logits, vocabulary_constants
from kernels.triton.launch import (
    Argument,
    Block,
    Constant,
    Pointer,
    Schedule,
    aligned,
    device_function,
    kernel,
    launch,
)

PROBES = 4
TILE = 2048
ABOVE_ONE = tl.constexpr(0x3F800001)
"""Bits of the smallest float32 above 1, the largest mass."""


@device_function
def _masses(
    row: Pointer, start: Block, largest: Block, cold: Block, least: Block, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
) -> Block:
    ids, value = logits_at(row, start, VOCABULARY, BLOCK)
    mass = tl.exp((value - largest) * cold)
    return ids, tl.where(mass >= least, mass, 0.0)


@device_function
def _border(
    row: Pointer,
    largest: Block,
    cold: Block,
    least: Block,
    limit: Block,
    target: Block,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    PROBES: tl.constexpr,
) -> Block:
    """(border, how many masses equal to it survive, sum of what survives): the shortest run of the order that has
    `limit` masses or the sum `target`, and at least one."""
    order = tl.arange(0, PROBES)
    high, high_count = tl.full([], ABOVE_ONE, tl.int32), 0
    high_sum = target * 0.0
    # Nothing below the smallest positive number has a mass; what reaches it is enough, because nothing else is left.
    low, low_count = 1, VOCABULARY
    # At first 2^-4, 2^-9, 2^-18 and all: where the border lies, as a rule.
    octaves = tl.where(order == 0, 4, tl.where(order == 1, 9, tl.where(order == 2, 18, 127)))
    probe = tl.maximum(high - octaves * 0x800000, low)
    searching = True
    while searching:
        threshold = probe.to(tl.float32, bitcast=True)
        counts = tl.zeros([PROBES, BLOCK], tl.int32)
        sums = tl.zeros([PROBES, BLOCK], tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            _, mass = _masses(row, start, largest, cold, least, VOCABULARY, BLOCK)
            reaches = mass[None, :] >= threshold[:, None]
            counts += reaches.to(tl.int32)
            sums += tl.where(reaches, mass[None, :], 0.0)
        count = tl.sum(counts, axis=1)
        weight = tl.sum(sums.to(tl.float64), axis=1)
        enough = (count >= limit) | (weight >= target) | (probe == low)
        # Probes descend: the first that is enough, and the one before it, are the new ends.
        first = tl.min(tl.where(enough, order, PROBES), axis=0)
        if first < PROBES:
            low = tl.sum(tl.where(order == first, probe, 0), axis=0)
            low_count = tl.sum(tl.where(order == first, count, 0), axis=0)
        if first > 0:
            high = tl.sum(tl.where(order == first - 1, probe, 0), axis=0)
            high_count = tl.sum(tl.where(order == first - 1, count, 0), axis=0)
            high_sum = tl.sum(tl.where(order == first - 1, weight, 0.0), axis=0)
        probe = high - ((high - low).to(tl.int64) * (order + 1) // (PROBES + 1)).to(tl.int32)
        searching = (high - low > 1) & (low_count - high_count > 1)
    # What is left between the thresholds is one mass, once or, with neighboring thresholds, several times.
    border = tl.zeros([BLOCK], tl.float32)
    below = high.to(tl.float32, bitcast=True)
    for start in range(0, VOCABULARY, BLOCK):
        _, mass = _masses(row, start, largest, cold, least, VOCABULARY, BLOCK)
        border = tl.maximum(border, tl.where(mass < below, mass, 0.0))
    edge = tl.max(border, axis=0)
    between = low_count - high_count
    if edge > 0.0:
        short = tl.minimum((target - high_sum) / edge.to(tl.float64), between.to(tl.float64))
        kept = tl.minimum(tl.minimum(limit - high_count, between), tl.ceil(short).to(tl.int32))
        kept = tl.maximum(kept, tl.where(high_count == 0, 1, 0))
    else:
        kept = between
    return edge, kept, high_sum + kept.to(tl.float64) * edge.to(tl.float64)


@kernel
def draw_tokens(
    logits: Pointer,
    temperature: Pointer,
    top_k: Pointer,
    top_p: Pointer,
    min_p: Pointer,
    uniforms: Pointer,
    out: Pointer,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    PROBES: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    row = logits + at * STRIDE
    largest, best = best_of(row, VOCABULARY, BLOCK)
    heat = tl.load(temperature + at)
    if (heat > 0.0) & (largest > NONE):
        cold = 1.0 / heat
        least, uniform = tl.load(min_p + at), tl.load(uniforms + at)
        k, p = tl.load(top_k + at), tl.load(top_p + at)
        limit = tl.where((k > 0) & (k < VOCABULARY), k, VOCABULARY + 1)
        edge, equals, total = 0.0, VOCABULARY, uniform * 0.0
        if limit <= VOCABULARY:
            edge, equals, total = _border(
                row, largest, cold, least, limit, uniform * 0.0 + float("inf"), VOCABULARY, BLOCK, PROBES
            )
        else:
            for start in range(0, VOCABULARY, BLOCK):
                _, mass = _masses(row, start, largest, cold, least, VOCABULARY, BLOCK)
                total += tl.sum(mass.to(tl.float64), axis=0)
        if p < 1.0:
            edge, equals, total = _border(
                row, largest, cold, least, limit, p.to(tl.float64) * total, VOCABULARY, BLOCK, PROBES
            )
        total = uniform * 0.0
        seen = 0
        for start in range(0, VOCABULARY, BLOCK):
            _, mass = _masses(row, start, largest, cold, least, VOCABULARY, BLOCK)
            equal = (mass == edge).to(tl.int32)
            survives = (mass > edge) | ((equal > 0) & (seen + tl.cumsum(equal, axis=0) <= equals))
            total += tl.sum(tl.where(survives, mass, 0.0).to(tl.float64), axis=0)
            seen += tl.sum(equal, axis=0)
        target = uniform * total
        passed = uniform * 0.0
        seen = 0
        chosen, last = NO_ID, best
        for start in range(0, VOCABULARY, BLOCK):
            ids, mass = _masses(row, start, largest, cold, least, VOCABULARY, BLOCK)
            equal = (mass == edge).to(tl.int32)
            survives = (mass > edge) | ((equal > 0) & (seen + tl.cumsum(equal, axis=0) <= equals))
            mass = tl.where(survives, mass, 0.0)
            sums = passed + tl.cumsum(mass.to(tl.float64), axis=0)
            chosen = tl.minimum(chosen, tl.min(tl.where((mass > 0.0) & (sums > target), ids, NO_ID), axis=0))
            last = tl.maximum(last, tl.max(tl.where(mass > 0.0, ids, -1), axis=0))
            passed += tl.sum(mass.to(tl.float64), axis=0)
            seen += tl.sum(equal, axis=0)
        # Rounding may leave the target at the very end: the last survivor is the answer then.
        best = tl.minimum(chosen, last)
    tl.store(out + at, best.to(tl.int64))


def sample_constants(vocabulary: int, stride: int) -> tuple[dict[str, Constant], Schedule]:
    constants, _ = vocabulary_constants(vocabulary, stride, TILE)
    warps = max(1, min(16, int(constants["BLOCK"] or 1) // 128))
    return constants | {"PROBES": PROBES}, Schedule(num_warps=warps, num_stages=1)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor
) -> Tensor:
    logits = rows_of_logits(logits)
    rows, vocabulary = logits.shape
    parameters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "uniforms": uniforms}
    if any(p.shape[0] != rows for p in parameters.values()):
        raise KernelError(f"sample: {rows} rows, parameters of {[p.shape[0] for p in parameters.values()]}")
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    constants, schedule = sample_constants(vocabulary, logits.stride(0))
    arguments: dict[str, Argument] = {name: aligned(value) for name, value in parameters.items()}
    arguments |= {"logits": logits, "out": out}
    launch(draw_tokens, (rows,), arguments, constants, schedule)
    return out
