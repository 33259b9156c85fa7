"""vLLM's Prometheus contract (names, labels, buckets) over an engine's stats. Counts nothing itself.

Operators' boards, the Kubernetes inference gateways and public load tools scrape these names; they are not ours to
change. Nothing is registered at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from engine.config import EngineConfig
from engine.histogram import HistogramData
from engine.metrics.stats import EngineStats

_LABELS = ("model_name", "engine")

HISTOGRAMS = {
    "time_to_first_token_seconds": "Time to first token in seconds.",
    "inter_token_latency_seconds": "Time between two tokens of a request in seconds.",
    "request_time_per_output_token_seconds": "Mean time per output token of a request in seconds.",
    "e2e_request_latency_seconds": "Time from arrival to the end of a request in seconds.",
    "request_queue_time_seconds": "Time a request waited in seconds.",
    "request_inference_time_seconds": "Time a request ran in seconds.",
    "request_prefill_time_seconds": "Time from admission to the first token in seconds.",
    "request_decode_time_seconds": "Time from the first to the last token in seconds.",
    "iteration_tokens_total": "Tokens computed in a step.",
    "request_params_n": "Parameter n of requests.",
    "request_prompt_tokens": "Prompt tokens of requests.",
    "request_generation_tokens": "Generated tokens of requests, all choices.",
    "request_max_num_generation_tokens": "Generated tokens of the longest choice.",
    "request_params_max_tokens": "Parameter max_tokens of requests.",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed, those from the prefix cache left out.",
    "kv_block_lifetime_seconds": "Time from filling a cached block to its eviction (sampled).",
    "kv_block_idle_before_evict_seconds": "Time from the last use of a cached block to its eviction (sampled).",
    "kv_block_reuse_gap_seconds": "Time between two uses of a cached block (sampled).",
}

Source = Callable[[], EngineStats]


class EngineCollector(Collector):
    """Metrics of several engines. `add` one per model; `stats` must be cheap and safe from the scraping thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._engines: list[tuple[tuple[str, str], EngineConfig, Source]] = []
        registry.register(self)

    def add(self, model_name: str, config: EngineConfig, stats: Source) -> None:
        self._engines.append(((model_name, str(len(self._engines))), config, stats))

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        moment = [(labels, config, stats()) for labels, config, stats in self._engines]
        yield from _gauges(moment)
        yield from _counters(moment)
        yield from _own(moment)
        for name, text in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            for labels, _, stats in moment:
                data = dict(stats.histograms).get(name)
                if data is not None:
                    family.add_metric(labels, _cumulative(data), data.total)
            yield family


_Moment = list[tuple[tuple[str, str], EngineConfig, EngineStats]]


def _gauges(moment: _Moment) -> Iterable[Metric]:
    simple: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
        "num_requests_running": ("Requests in the batch.", lambda s: s.running),
        "num_requests_waiting": ("Requests waiting.", lambda s: s.waiting),
        "kv_cache_usage_perc": ("Used part of the KV cache, 0 to 1.", lambda s: s.kv_usage),
    }
    for name, (text, value) in simple.items():
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for labels, _, stats in moment:
            family.add_metric(labels, value(stats))
        yield family
    by_reason = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", labels=(*_LABELS, "reason")
    )
    asleep = GaugeMetricFamily("vllm:engine_sleep_state", "1 in the present state.", labels=(*_LABELS, "sleep_state"))
    lora = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters in use; none are supported.",
        labels=(*_LABELS, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    )
    cache = GaugeMetricFamily(
        "vllm:cache_config_info",
        "The KV cache's configuration.",
        labels=(*_LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"),
    )
    for labels, config, stats in moment:
        by_reason.add_metric((*labels, "capacity"), stats.waiting)
        by_reason.add_metric((*labels, "deferred"), 0)
        asleep.add_metric((*labels, "awake"), float(stats.state != "asleep"))
        asleep.add_metric((*labels, "weights_offloaded"), float(stats.state == "asleep"))
        asleep.add_metric((*labels, "discard_all"), 0.0)
        lora.add_metric((*labels, "0", "", ""), 1.0)
        about = (str(config.block_size), str(stats.kv.num_blocks), str(config.enable_prefix_caching), config.dtype)
        cache.add_metric((*labels, *about), 1.0)
    yield from (by_reason, asleep, lora, cache)


def _counters(moment: _Moment) -> Iterable[Metric]:
    simple: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
        "prompt_tokens": ("Prompt tokens processed.", lambda s: s.prompt_tokens),
        "prompt_tokens_cached": ("Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits),
        "generation_tokens": ("Tokens generated.", lambda s: s.generated_tokens),
        "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda s: s.prefix_queries),
        "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits),
        "num_preemptions": ("Preemptions.", lambda s: s.preemptions),
        "corrupted_requests": ("Requests ended by a fault.", lambda s: dict(s.finished).get("error", 0)),
        "external_prefix_cache_queries": ("Tokens looked up in an external cache; there is none.", lambda _: 0),
        "external_prefix_cache_hits": ("Tokens found in an external cache; there is none.", lambda _: 0),
        "mm_cache_queries": ("Multimodal items looked up; there are none.", lambda _: 0),
        "mm_cache_hits": ("Multimodal items found; there are none.", lambda _: 0),
        "spec_decode_num_drafts": ("Drafts.", lambda _: 0),
        "spec_decode_num_draft_tokens": ("Draft tokens.", lambda _: 0),
        "spec_decode_num_accepted_tokens": ("Accepted draft tokens.", lambda _: 0),
    }
    for name, (text, value) in simple.items():
        family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for labels, _, stats in moment:
            family.add_metric(labels, value(stats))
        yield family
    by_source = CounterMetricFamily(
        "vllm:prompt_tokens_by_source", "Prompt tokens by where they came from.", labels=(*_LABELS, "source")
    )
    success = CounterMetricFamily(
        "vllm:request_success", "Requests ended, by reason.", labels=(*_LABELS, "finished_reason")
    )
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens.", labels=(*_LABELS, "position")
    )
    for labels, _, stats in moment:
        by_source.add_metric((*labels, "local_compute"), stats.prompt_tokens - stats.prefix_hits)
        by_source.add_metric((*labels, "local_cache_hit"), stats.prefix_hits)
        by_source.add_metric((*labels, "external_kv_transfer"), 0)
        for reason, count in stats.finished:
            success.add_metric((*labels, reason), count)
        accepted.add_metric((*labels, "0"), 0)
    yield from (by_source, success, accepted)


def _own(moment: _Moment) -> Iterable[Metric]:
    """Metrics that vLLM has no name for: whether the engine thread lives, and the faults it has survived."""
    state = GaugeMetricFamily("esclusa_engine_state", "1 in the present state.", labels=(*_LABELS, "state"))
    stalled = GaugeMetricFamily(
        "esclusa_engine_stalled_s", "Seconds that the present step is beyond the watchdog's limit.", labels=_LABELS
    )
    counters: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
        "restarts": ("Rebuilds after the loop or the runner died.", lambda s: s.restarts),
        "step_faults": ("Steps that raised and were run again in parts.", lambda s: s.step_faults),
        "poison_refusals": ("Requests refused because equal ones stopped the engine twice.", lambda s: s.poisoned),
    }
    late = CounterMetricFamily(
        "esclusa_kernel_late_compiles", "GPU kernels compiled while serving, not ahead.", labels=_LABELS
    )
    for labels, _, stats in moment:
        late.add_metric(labels, stats.late_compiles)
        state.add_metric((*labels, "stalled" if stats.stalled_s > 0 else stats.state), 1.0)
        stalled.add_metric(labels, stats.stalled_s)
    yield from (state, stalled, late)
    for name, (text, value) in counters.items():
        family = CounterMetricFamily(f"esclusa_engine_{name}", text, labels=_LABELS)
        for labels, _, stats in moment:
            family.add_metric(labels, value(stats))
        yield family


def _cumulative(data: HistogramData) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*data.bounds, float("inf")), data.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return buckets
