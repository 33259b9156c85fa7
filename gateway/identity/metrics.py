"""Identity in numbers: key sets per provider, refusals per code, the cache, the list of revocations.

Reads `IdentityService.status()` when Prometheus asks; keeps nothing. No label ever holds a person or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.identity.service import IdentityStatus

_PREFIX = "esclusa_identity"


class IdentityCollector(Collector):
    """Register it once: `registry.register(IdentityCollector(service.status))`."""

    def __init__(self, status: Callable[[], IdentityStatus]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield from _key_sets(status)
        refusals = CounterMetricFamily(
            f"{_PREFIX}_refusals", "Credentials refused, by public error code.", labels=["code"]
        )
        for code, count in sorted(status.refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
        lookups = CounterMetricFamily(
            f"{_PREFIX}_cache_lookups", "Lookups in the cache of verified credentials.", labels=["result"]
        )
        lookups.add_metric(["hit"], status.cache_hits)
        lookups.add_metric(["miss"], status.cache_misses)
        yield lookups
        yield CounterMetricFamily(
            f"{_PREFIX}_stale_keys_served",
            "API keys accepted as last known while the database was away.",
            value=status.stale_keys_served,
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_cache_entries", "Verified credentials in the cache.", value=status.cache_entries
        )
        yield GaugeMetricFamily(f"{_PREFIX}_revocations", "Revocations in force.", value=status.revocations)
        if status.revocations_age_s is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_revocations_age_seconds",
                "Seconds since the list of revocations was loaded.",
                value=status.revocations_age_s,
            )


def _key_sets(status: IdentityStatus) -> Iterable[Metric]:
    keys = GaugeMetricFamily(f"{_PREFIX}_keys", "Usable keys of an identity provider.", labels=["provider"])
    age = GaugeMetricFamily(
        f"{_PREFIX}_keys_age_seconds", "Seconds since the key set of a provider was fetched.", labels=["provider"]
    )
    stale = GaugeMetricFamily(
        f"{_PREFIX}_keys_stale_seconds", "Seconds that a key set is older than its time to live.", labels=["provider"]
    )
    failures = CounterMetricFamily(
        f"{_PREFIX}_key_fetch_failures", "Fetches of a key set that failed.", labels=["provider"]
    )
    fetches = CounterMetricFamily(
        f"{_PREFIX}_key_fetches", "Fetches of a key set, by reason.", labels=["provider", "reason"]
    )
    for one in status.key_sets:
        keys.add_metric([one.provider], one.keys)
        stale.add_metric([one.provider], one.stale_s)
        failures.add_metric([one.provider], one.fetch_failures)
        if one.age_s is not None:
            age.add_metric([one.provider], one.age_s)
        for reason, count in sorted(one.fetches.items()):
            fetches.add_metric([one.provider, reason], count)
    return keys, age, stale, failures, fetches
