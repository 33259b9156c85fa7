"""The gateway's numbers for Prometheus: one registry, built by `wiring`, filled from finished exchanges and states.

Labels come from closed sets (catalog ids, our own codes), never from what a caller wrote. Requests only add to plain
numbers here; families are made when Prometheus asks, because that is rare and requests are not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.flow.stages import Concluded, plan_of, request_of, served_of

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
OVERHEAD = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
State = Callable[[], Mapping[str, object]]


class PartState(Protocol):
    """The state of a part (`gateway.api.health.Part`)."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def serves(self) -> bool: ...


class Buckets:
    """A histogram's counts. One event loop adds; a scrape reads."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        pairs, running = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            pairs.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
        return pairs


class ModelNumbers:
    """The counters of one served model."""

    __slots__ = ("cached", "cost_micro", "currency", "duration", "first_token", "input", "output")

    def __init__(self, currency: str) -> None:
        self.currency = currency
        self.duration, self.first_token = Buckets(LATENCY), Buckets(LATENCY)
        self.input = self.output = self.cached = self.cost_micro = 0


class GatewayMetrics(Collector):
    """Implements `flow.ports.Observer`; registers itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._findings: Counter[tuple[str, str, str]] = Counter()
        self._models: dict[str, ModelNumbers] = {}
        self._overhead = Buckets(OVERHEAD)
        self._lag_s = 0.0
        registry.register(self)

    def loop_lag(self, seconds: float) -> None:
        self._lag_s = seconds

    def finished(self, exchange: Concluded) -> None:
        stage = exchange.stage
        request, served, plan = request_of(stage), served_of(stage), plan_of(stage)
        model = served.id if served is not None else "none"
        action = request.action if request is not None else "none"
        route = plan.route if plan is not None else "none"
        self._requests[action, model, route, exchange.outcome] += 1
        if exchange.failure is not None:
            self._refusals[exchange.failure.code] += 1
        for found in exchange.findings:
            self._findings[found.category, found.action, found.direction] += found.count
        if served is None or request is None or not request.runs:
            return
        numbers = self._models.get(model)
        if numbers is None:
            numbers = self._models[model] = ModelNumbers(served.currency)
        usage, timings = exchange.usage, exchange.timings
        numbers.input += usage.prompt_tokens
        numbers.output += usage.completion_tokens
        numbers.cached += usage.cached_tokens
        numbers.cost_micro += exchange.cost_micro
        if timings.total_us is not None:
            numbers.duration.observe(timings.total_us / 1e6)
        if timings.ttft_us is not None:
            numbers.first_token.observe(timings.ttft_us / 1e6)
        if timings.overhead_us is not None:
            self._overhead.observe(timings.overhead_us / 1e6)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "esclusa_requests", "Finished requests.", labels=["action", "model", "route", "outcome"]
        )
        for labels, count in tuple(self._requests.items()):
            requests.add_metric(labels, count)
        refusals = CounterMetricFamily("esclusa_refusals", "Refused requests by public code.", labels=["code"])
        for code, count in tuple(self._refusals.items()):
            refusals.add_metric([code], count)
        findings = CounterMetricFamily(
            "esclusa_findings", "What inspection found in texts.", labels=["category", "action", "direction"]
        )
        for kinds, count in tuple(self._findings.items()):
            findings.add_metric(kinds, count)
        overhead = HistogramMetricFamily(
            "esclusa_overhead_seconds",
            "What the gateway adds before the backend starts.",
            buckets=self._overhead.cumulative(),
            sum_value=self._overhead.total,
        )
        lag = GaugeMetricFamily(
            "esclusa_event_loop_lag_seconds", "How late the event loop runs its timers.", value=self._lag_s
        )
        yield from (requests, refusals, findings, overhead, lag)
        yield from self._by_model()

    def _by_model(self) -> Iterable[Metric]:
        tokens = CounterMetricFamily(
            "gen_ai_client_token_usage",
            "Tokens used, by model and kind.",
            labels=["gen_ai_request_model", "gen_ai_token_type"],
        )
        cost = CounterMetricFamily(
            "esclusa_cost_micro", "Cost of requests in millionths of the currency unit.", labels=["model", "currency"]
        )
        duration = HistogramMetricFamily(
            "gen_ai_server_request_duration_seconds",
            "From arrival to the end of the answer.",
            labels=["gen_ai_request_model"],
        )
        first = HistogramMetricFamily(
            "gen_ai_server_time_to_first_token_seconds",
            "From arrival to the first chunk.",
            labels=["gen_ai_request_model"],
        )
        for model, numbers in tuple(self._models.items()):
            for kind, count in (("input", numbers.input), ("output", numbers.output), ("cached", numbers.cached)):
                tokens.add_metric([model, kind], count)
            cost.add_metric([model, numbers.currency], numbers.cost_micro)
            duration.add_metric([model], numbers.duration.cumulative(), numbers.duration.total)
            first.add_metric([model], numbers.first_token.cumulative(), numbers.first_token.total)
        yield from (tokens, cost, duration, first)


class StateCollector(Collector):
    """Numbers that services already keep (`status()` mappings), read when Prometheus asks."""

    def __init__(self, states: Mapping[str, State]) -> None:
        self._states = states

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        for part, state in self._states.items():
            for name, value in state().items():
                metric = f"esclusa_{part}_{name}"
                if isinstance(value, bool | int | float):
                    yield GaugeMetricFamily(metric, explain(part, name), value=float(value))
                elif name == "state":
                    known = GaugeMetricFamily(metric, f"1 for the present state of the {part} part.", labels=[name])
                    known.add_metric([str(value)], 1.0)
                    yield known


HELP: Mapping[str, str] = {
    "audit_spool_bytes": "Bytes of audit records on disk that Postgres has not taken yet.",
    "audit_spool_quota_bytes": "Bytes that the audit spool may take; beyond, requests are refused.",
    "audit_open_requests": "Requests with an intent record and no completion record yet.",
    "audit_ingest_lag_s": "Age in seconds of the oldest audit record that is not in Postgres.",
    "audit_shipped": "Audit records that this process has written to Postgres.",
    "audit_quarantined": "Audit records in the quarantine table: refused by Postgres, or moved there by somebody.",
    "audit_quarantined_files": "Damaged files of the audit spool that are kept aside.",
    "audit_lost_records": "Audit records that damage to the spool has destroyed, where their number is known.",
    "audit_spool_restored": "Times that a removed spool folder was put back.",
    "audit_stray_rows": "Audit rows whose month has no partition of its own.",
    "audit_misdated": "Audit records whose time is far from the clock of Postgres.",
    "audit_clock_skew_s": "Seconds between the clocks of this process and of Postgres when records were last shipped.",
    "audit_postgres_behind": "1 while Postgres does not take audit records.",
    "audit_housekeeping_fails": "1 while partitions of the audit table cannot be made or removed.",
    "audit_sealed_seq": "Sequence number up to which the chain of this run was last sealed.",
    "audit_recovered": "Audit records of earlier runs that this process has shipped.",
    "limits_in_flight": "Requests that hold a claim on a limit.",
    "limits_pending_settlements": "Settlements that wait for the limit store.",
    "limits_dropped_settlements": "Settlements that were given up because too many waited.",
    "policy_version": "Version of the policy in force.",
    "policy_age_s": "Seconds since the policy was last confirmed by the database.",
    "http_in_flight": "Requests being served.",
    "http_operators": "Requests being served in the lane reserved for operators.",
    "http_rejected": "Requests refused since the start because too many were being served.",
    "batch_open": "Batches that have not ended, of all nodes.",
    "batch_queued": "Lines of batches that wait to run, of all nodes.",
    "batch_running": "Lines of batches that this node runs.",
    "batch_done": "Lines of batches that this node has answered with 200 since the start.",
    "batch_failed": "Lines of batches that this node has answered otherwise since the start.",
    "batch_repeated": "Lines of batches that this node has started and that had been started before.",
    "connections_open": "Client connections that are open.",
    "connections_waiting": "Client connections without a whole request in them.",
    "connections_refused": "Connections refused since the start because no place was free.",
    "connections_evicted": "Connections that waited and were closed for a new one since the start.",
    "connections_expired": "Connections closed since the start because headers or body did not arrive in time.",
    "connections_unread_answers": "Connections closed since the start because their reader took too little.",
    "connections_unsent_bytes": "Bytes of answers that their readers have not taken.",
    "postgres_up": "1 while Postgres answers a query every few seconds.",
    "postgres_clock_skew_s": "Seconds that the clock of Postgres is ahead of the clock of this process.",
    "descriptors_limit": "File descriptors that this process may open.",
    "descriptors_needed": "File descriptors that the configured admission needs.",
    "descriptors_open": "File descriptors that are open.",
    "descriptors_max_connections": "Client connections admitted at once, after fitting to the limit of descriptors.",
    "descriptors_max_requests": "Requests admitted at once, after fitting to the limit of descriptors.",
}


def explain(part: str, name: str) -> str:
    """The sentence for a number; a plain one from its name where none is written down yet."""
    return HELP.get(f"{part}_{name}", f"The {name.replace('_', ' ')} of the {part} part.")


class PartCollector(Collector):
    """The state of each part, as `/readyz` tells it."""

    def __init__(self, parts: Callable[[], Iterable[PartState]]) -> None:
        self._parts = parts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily(
            "esclusa_part_ready", "1 while requests can be served with this part as it is.", labels=["part"]
        )
        state = GaugeMetricFamily("esclusa_part_state", "1 for the present state of a part.", labels=["part", "state"])
        for part in self._parts():
            ready.add_metric([part.name], float(part.serves))
            state.add_metric([part.name, part.state], 1.0)
        yield from (ready, state)
