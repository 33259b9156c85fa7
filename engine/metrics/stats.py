"""The engine's counters. `StatsRecorder` is written by the engine thread alone; `EngineStats` is its frozen copy.

Times are seconds, cache queries and hits are tokens (as in vLLM). Knows no Prometheus.
"""

from __future__ import annotations

from collections import OrderedDict, abc
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.histogram import Histogram, HistogramData
from engine.kv_cache.block_lifetimes import BlockWatch
from engine.kv_cache.manager import KVUsage
from engine.requests import FinishReason
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Sequence

_TRACKED_SHARES = 1024


def _one_two_five(highest: int) -> tuple[float, ...]:
    series: list[float] = []
    scale = 1
    while scale <= highest:
        series.extend(float(scale * digit) for digit in (1, 2, 5) if scale * digit <= highest)
        scale *= 10
    return tuple(series)


FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, slots=True)
class ShareStats:
    """One share key since start: who was served what, and what the prefix cache spared."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    living: int = 0


_Key = TypeVar("_Key", str, float | None)


def _tally(values: abc.Sequence[_Key]) -> dict[_Key, int]:
    """How often each occurs. For the few dozen values of a step a `Counter` costs more to build than to fill."""
    counts: dict[_Key, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


NO_KV = KVUsage(num_blocks=1, free_blocks=1, cached_blocks=0, allocated_slots=0, used_slots=0)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A consistent moment of the engine, safe to read from any thread."""

    state: str = "loading"
    stage: str = ""
    percent: float = 0.0
    running: int = 0
    waiting: int = 0
    kv: KVUsage = NO_KV
    kv_usage: float = 0.0
    kv_waste_fraction: float = 0.0
    """Allocated token slots without a token, averaged over all steps since start, weighted by slots."""
    steps: int = 0
    host_ms_per_step: float = 0.0
    step_ms: float = 0.0
    """Mean wall time of a step, kernels included."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    finished: tuple[tuple[str, int], ...] = ()
    step_faults: int = 0
    """Steps that raised and were retried to find the culprit."""
    late_compiles: int = 0
    """GPU kernels that were compiled while serving."""
    restarts: int = 0
    poisoned: int = 0
    stalled_s: float = 0.0
    """How long the present step has run beyond the watchdog's limit."""
    shares: tuple[tuple[str, ShareStats], ...] = ()
    histograms: tuple[tuple[str, HistogramData], ...] = ()


@dataclass(slots=True)
class StatsRecorder:
    """Mutable counters. All methods are O(1) or O(events of the step)."""

    max_model_len: int = 4096
    steps: int = 0
    host_s: float = 0.0
    step_s: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    step_faults: int = 0
    late_compiles: int = 0
    restarts: int = 0
    poisoned: int = 0
    preemptions: int = 0
    """Of schedulers that are gone; the living one counts its own."""
    finished: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})
    histograms: dict[str, Histogram] = field(default_factory=dict)
    blocks: BlockWatch = field(default_factory=BlockWatch)
    _between_tokens: Histogram = field(init=False)
    _allocated: int = 0
    _unused: int = 0
    _shares: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        lengths = _one_two_five(self.max_model_len)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN_BUCKETS),
            "inter_token_latency_seconds": Histogram(TOKEN_BUCKETS),
            "request_time_per_output_token_seconds": Histogram(TOKEN_BUCKETS),
            "e2e_request_latency_seconds": Histogram(REQUEST_BUCKETS),
            "request_queue_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_inference_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_prefill_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_decode_time_seconds": Histogram(REQUEST_BUCKETS),
            "iteration_tokens_total": Histogram(ITERATION_BUCKETS),
            "request_params_n": Histogram(CHOICE_BUCKETS),
            "request_prompt_tokens": Histogram(lengths),
            "request_generation_tokens": Histogram(lengths),
            "request_max_num_generation_tokens": Histogram(lengths),
            "request_params_max_tokens": Histogram(lengths),
            "request_prefill_kv_computed_tokens": Histogram(lengths),
        }
        self.histograms |= {
            "kv_block_lifetime_seconds": self.blocks.lifetime,
            "kv_block_idle_before_evict_seconds": self.blocks.idle_before_evict,
            "kv_block_reuse_gap_seconds": self.blocks.reuse_gap,
        }
        self._between_tokens = self.histograms["inter_token_latency_seconds"]

    def step(self, num_tokens: int, host_s: float, step_s: float, kv: KVUsage) -> None:
        self.steps += 1
        self.host_s += host_s
        self.step_s += step_s
        self._allocated += kv.allocated_slots
        self._unused += kv.allocated_slots - kv.used_slots
        self.histograms["iteration_tokens_total"].observe(num_tokens)

    def first_token(self, sequence: Sequence, now: float) -> None:
        """The prompt is done: its tokens and hits are counted here, once a request (as in its usage), so that neither
        a preemption nor further choices, which hit what the first one computed, count them again."""
        cached = max(0, sequence.num_cached)
        self.histograms["time_to_first_token_seconds"].observe(now - sequence.arrived_at)
        self.histograms["request_prefill_kv_computed_tokens"].observe(sequence.num_prompt_tokens - cached)
        if sequence.choice:
            return
        self.prompt_tokens += sequence.num_prompt_tokens
        self.prefix_queries += sequence.num_prompt_tokens
        self.prefix_hits += cached
        share = self._share(sequence.share_key)
        share[0] += sequence.num_prompt_tokens
        share[2] += cached

    def tokens(self, shares: abc.Sequence[str], before: abc.Sequence[float | None], now: float) -> None:
        """The tokens of one step: the share of each, and when its sequence's last one came. Most came together."""
        self.generated_tokens += len(shares)
        for key, count in _tally(shares).items():
            self._share(key)[1] += count
        for last, count in _tally(before).items():
            if last is not None:
                self._between_tokens.observe(now - last, count)

    def sequence_finished(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        self.finished[reason.value] += 1
        observe = self.histograms
        observe["e2e_request_latency_seconds"].observe(now - sequence.arrived_at)
        if sequence.admitted_at is None:
            return
        observe["request_queue_time_seconds"].observe(sequence.admitted_at - sequence.arrived_at)
        observe["request_inference_time_seconds"].observe(now - sequence.admitted_at)
        if sequence.first_token_at is None:
            return
        observe["request_prefill_time_seconds"].observe(sequence.first_token_at - sequence.admitted_at)
        observe["request_decode_time_seconds"].observe(now - sequence.first_token_at)
        if sequence.num_output > 1:
            per_token = (now - sequence.first_token_at) / (sequence.num_output - 1)
            observe["request_time_per_output_token_seconds"].observe(per_token)

    def request_finished(self, prompt_tokens: int, generated: abc.Sequence[int], max_tokens: int) -> None:
        observe = self.histograms
        observe["request_prompt_tokens"].observe(prompt_tokens)
        observe["request_generation_tokens"].observe(sum(generated))
        observe["request_max_num_generation_tokens"].observe(max(generated, default=0))
        observe["request_params_max_tokens"].observe(max_tokens)
        observe["request_params_n"].observe(len(generated))

    def _share(self, key: str) -> list[int]:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = [0, 0, 0]
            if len(self._shares) > _TRACKED_SHARES:
                self._shares.popitem(last=False)
        return share

    @property
    def kv_waste_fraction(self) -> float:
        return self._unused / self._allocated if self._allocated else 0.0

    def snapshot(self, scheduler: Scheduler, **about: Any) -> EngineStats:
        """A frozen copy; `about` is what the owner of the engine knows (state, stage, percent, stalled_s)."""
        kv = scheduler.kv.snapshot(scheduler.running)
        steps, living = max(1, self.steps), scheduler.living_per_share
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv=kv,
            kv_usage=kv.usage,
            kv_waste_fraction=self.kv_waste_fraction,
            steps=self.steps,
            host_ms_per_step=1000 * self.host_s / steps,
            step_ms=1000 * self.step_s / steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            preemptions=self.preemptions + scheduler.num_preemptions,
            finished=tuple(self.finished.items()),
            step_faults=self.step_faults,
            late_compiles=self.late_compiles,
            restarts=self.restarts,
            poisoned=self.poisoned,
            shares=tuple((k, ShareStats(s[0], s[1], s[2], living.get(k, 0))) for k, s in self._shares.items()),
            histograms=tuple((name, h.snapshot()) for name, h in self.histograms.items()),
            **about,
        )
