"""The gateway's numbers for Prometheus: one registry, built by `wiring`, filled from finished exchanges and states.

Labels come from closed sets (catalogue ids, our own codes), never from what a caller wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.flow.values import Exchange

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
OVERHEAD = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1)
State = Callable[[], Mapping[str, object]]


class GatewayMetrics:
    """Implements `flow.ports.Observer`. Children are looked up once per label set: `labels()` is not cheap."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "esclusa_requests", "Finished requests", ["action", "model", "route", "outcome"], registry=registry
        )
        self._refusals = Counter("esclusa_refusals", "Refused requests by public code", ["code"], registry=registry)
        self._tokens = Counter(
            "gen_ai_client_token_usage", "Tokens", ["gen_ai_request_model", "gen_ai_token_type"], registry=registry
        )
        self._cost = Counter("esclusa_cost_micro", "Micro-units of currency", ["model", "currency"], registry=registry)
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From arrival to the end of the answer",
            ["gen_ai_request_model"],
            buckets=LATENCY,
            registry=registry,
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From arrival to the first chunk",
            ["gen_ai_request_model"],
            buckets=LATENCY,
            registry=registry,
        )
        self._overhead = Histogram(
            "esclusa_overhead_seconds",
            "What the gateway adds before the backend starts",
            buckets=OVERHEAD,
            registry=registry,
        )
        self.lag = Gauge("esclusa_event_loop_lag_seconds", "How late the event loop runs its timers", registry=registry)
        self._by_model: dict[str, tuple[Histogram, Histogram, Counter, Counter, Counter, Counter]] = {}
        self._by_outcome: dict[tuple[str, str, str, str], Counter] = {}

    def finished(self, exchange: Exchange) -> None:
        request, served, timings = exchange.request, exchange.served, exchange.timings
        model = served.id if served is not None else "none"
        key = (
            request.action if request is not None else "none",
            model,
            exchange.plan.route if exchange.plan is not None else "none",
            exchange.outcome or "none",
        )
        counter = self._by_outcome.get(key)
        if counter is None:
            counter = self._by_outcome[key] = self._requests.labels(*key)
        counter.inc()
        if exchange.failure is not None:
            self._refusals.labels(exchange.failure.code).inc()
        if served is None:
            return
        children = self._by_model.get(model)
        if children is None:
            children = self._by_model[model] = (
                self._duration.labels(model),
                self._first_token.labels(model),
                self._tokens.labels(model, "input"),
                self._tokens.labels(model, "output"),
                self._tokens.labels(model, "cached"),
                self._cost.labels(model, served.currency),
            )
        duration, first, given, made, cached, cost = children
        usage = exchange.usage
        given.inc(usage.prompt_tokens)
        made.inc(usage.completion_tokens)
        cached.inc(usage.cached_tokens)
        cost.inc(exchange.cost_micro)
        if timings.total_us is not None:
            duration.observe(timings.total_us / 1e6)
        if timings.ttft_us is not None:
            first.observe(timings.ttft_us / 1e6)
        if timings.overhead_us is not None:
            self._overhead.observe(timings.overhead_us / 1e6)


class StateCollector(Collector):
    """Numbers that services already keep (`status()` mappings), read when Prometheus asks."""

    def __init__(self, states: Mapping[str, State]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        for part, state in self._states.items():
            for name, value in state().items():
                if isinstance(value, bool | int | float):
                    yield GaugeMetricFamily(f"esclusa_{part}_{name}", f"{part}: {name}", value=float(value))
