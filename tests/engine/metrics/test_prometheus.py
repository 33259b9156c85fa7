from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine import EngineCollector, LLMEngine
from engine.histogram import Histogram
from tests.fakes.engines import config, loader_of, request
from tests.fakes.runner import FakeRunner

NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "lora_requests_info",
    "cache_config_info",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "generation_tokens",
    "request_success",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "mm_cache_queries",
    "mm_cache_hits",
    "num_preemptions",
    "corrupted_requests",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "iteration_tokens_total",
    "request_params_n",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
)


def scrape() -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    registry = CollectorRegistry()
    collector = EngineCollector(registry)
    engine = LLMEngine(config(), loader=loader_of(FakeRunner()))
    engine.generate([request("a", "una pregunta larga", max_tokens=5), request("b", "hola", n=2, max_tokens=2)])
    engine.generate([request("c", "una pregunta larga", max_tokens=1)])
    collector.add("small", config(), engine.stats)
    text = generate_latest(registry).decode()
    return {
        family.name: {(*sorted(s.labels.items()), ("", s.name)): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_every_name_of_the_contract_is_exported() -> None:
    exported = scrape()
    missing = [
        name
        for name in NAMES
        if f"vllm:{name.removesuffix('_total')}" not in exported and f"vllm:{name}" not in exported
    ]
    assert missing == []


def test_counters_have_the_total_suffix_and_both_labels() -> None:
    samples = scrape()["vllm:generation_tokens"]
    labels = (("engine", "0"), ("model_name", "small"), ("", "vllm:generation_tokens_total"))
    assert samples[labels] == 5 + 4 + 1


def test_cache_queries_and_hits_are_counted_in_tokens() -> None:
    exported = scrape()
    (queries,) = exported["vllm:prefix_cache_queries"].values()
    (hits,) = exported["vllm:prefix_cache_hits"].values()
    assert (queries, hits) == (18 + 4 + 18, 16)


def test_finished_requests_are_counted_by_reason() -> None:
    samples = scrape()["vllm:request_success"]
    by_reason = {dict(labels)["finished_reason"]: value for labels, value in samples.items()}
    assert by_reason == {"stop": 0, "length": 4, "abort": 0, "deadline": 0, "error": 0}


def test_histogram_buckets_are_cumulative_and_end_at_the_count() -> None:
    samples = scrape()["vllm:request_generation_tokens"]
    by_bound = {dict(labels)["le"]: v for labels, v in samples.items() if dict(labels)[""].endswith("_bucket")}
    count = next(v for labels, v in samples.items() if dict(labels)[""].endswith("_count"))
    assert (by_bound["1.0"], by_bound["2.0"], by_bound["5.0"], by_bound["+Inf"], count) == (1, 1, 3, 3, 3)


def test_time_to_first_token_has_the_published_bounds() -> None:
    samples = scrape()["vllm:time_to_first_token_seconds"]
    bounds = [dict(labels)["le"] for labels in samples if "le" in dict(labels)]
    assert [float(b) for b in bounds][:5] == [0.001, 0.005, 0.01, 0.02, 0.04]
    assert float(bounds[-2]) == 2560.0


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.snapshot().counts == (1, 2, 1)


def test_the_state_of_the_engine_and_what_it_has_survived_are_exported() -> None:
    exported = scrape()
    states = {dict(labels)["state"]: value for labels, value in exported["esclusa_engine_state"].items()}
    assert states == {"ready": 1.0}
    for name in ("esclusa_engine_stalled_s", "esclusa_engine_restarts", "esclusa_engine_poison_refusals"):
        assert list(exported[name].values()) == [0.0]
