"""The client address of a request that came through reverse proxies. Pure; knows addresses, not requests.

`X-Forwarded-For` is believed only from a trusted proxy, and only as far back as the first address that is none. What
cannot be read there is no address at all, never the proxy's: a rule about source networks must fail closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

MAX_HOPS = 32
"""Addresses read from the near end of the list; a longer chain of own proxies has no readable client."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def parse_hop(text: str) -> Address | None:
    """`203.0.113.9`, `203.0.113.9:51234`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`; else None.

    IPv6-mapped IPv4 counts as IPv4, and the zone of a link-local address is dropped.
    """
    host = text.strip()
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port.removeprefix(":"))):
            return None
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not _is_port(port):
            return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text[:6]) <= 65_535


class TrustedProxies:
    """The networks whose `X-Forwarded-For` is believed."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._read = lru_cache(maxsize=4096)(self._look_up)

    def trust(self, peer: str | None) -> bool:
        return bool(self._networks) and peer is not None and self._read(peer)[1]

    def client(self, peer: str | None, forwarded: Sequence[bytes]) -> str | None:
        """The nearest address that is not one of our proxies; `forwarded` holds the header's lines in order.

        None when it cannot be read. Where every address is a trusted proxy it is the farthest one.
        """
        if peer is None:
            return None
        own = self._read(peer)[0] or peer
        if not forwarded or not self.trust(peer):
            return own
        hops = b",".join(forwarded).decode("latin-1").rsplit(",", MAX_HOPS)
        more = len(hops) > MAX_HOPS
        last: str | None = own
        for hop in reversed(hops[1:] if more else hops):
            if not hop.strip():
                continue
            last, trusted = self._read(hop[:64])
            if not trusted:
                return last
        return None if more else last

    def _look_up(self, text: str) -> tuple[str | None, bool]:
        address = parse_hop(text)
        if address is None:
            return None, False
        return str(address), any(address in network for network in self._networks)
