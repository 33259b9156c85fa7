"""The `http` section of the settings: listeners, limits of connections and bodies, who may call from where."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config_source import Section


def _network(value: object) -> IPv4Network | IPv6Network:
    """An address or a network in CIDR notation; IPv6-mapped IPv4 becomes IPv4, as addresses of callers do."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    try:
        network = ip_network(value if isinstance(value, str) else "")
    except ValueError:
        expected = "expected an IP address or a network such as 10.0.0.0/8 or 2001:db8::/32 (without host bits or port)"
        raise ValueError(expected) from None
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


def _origin(value: str) -> str:
    if value != "*" and not re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", value):
        raise ValueError(
            "must be a web origin such as https://chat.example.com, in lower case and without a path, or *"
        )
    return value


Origin = Annotated[str, AfterValidator(_origin)]
TrustedNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class HttpSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    metrics_port: int | None = Field(9090, ge=0, le=65535, description="own listener of /metrics; None turns it off")
    metrics_host: str = Field("127.0.0.1", description="/metrics has no credential: who listens here decides who reads")
    max_body_bytes: int = Field(4 * 1024 * 1024, gt=0)
    max_header_bytes: int = Field(
        384 * 1024, gt=0, description="above any token a provider could send, so that a bloated one is told 401"
    )
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    request_timeout_s: float = Field(600.0, gt=0, description="deadline of one answer, queueing included")
    max_concurrent_requests: int = 1024
    max_connections: int = Field(
        4096, gt=0, description="beyond it a new one takes the place of the one that has waited longest for its request"
    )
    max_connections_per_address: int = Field(
        1024, gt=0, description="the same for one IPv4 address or IPv6 /64; `trusted_proxies` are not counted"
    )
    write_timeout_s: float = Field(
        30.0, gt=0, description="a client that takes less than 1 KiB/s of its answer for so long is disconnected"
    )
    max_unsent_bytes: int = Field(
        256 * 1024 * 1024, gt=0, description="of answers that clients do not take; beyond it the slowest are cut off"
    )
    operator_slots: int = Field(
        16,
        ge=1,
        le=256,
        description="requests to /admin/v1 that are admitted although max_concurrent_requests are running",
    )
    drain_delay_s: float = Field(
        1.0, ge=0, le=300, description="after SIGTERM `/readyz` says `draining` this long before the port closes"
    )
    shutdown_grace_s: float = 30.0
    allowed_hosts: tuple[str, ...] = ("*",)
    trusted_proxies: tuple[TrustedNetwork, ...] = Field(
        (), description="addresses or networks of reverse proxies whose `X-Forwarded-For` is believed"
    )
    cors_origins: tuple[Origin, ...] = Field(
        (), description="web origins whose pages may call /v1 from a browser, or `*` for any; none by default"
    )
    docs: bool = Field(
        False, description="serve /docs, the API reference as a page; it and /openapi.json then need no credential"
    )
