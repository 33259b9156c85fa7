"""Whose address a request has behind reverse proxies: forms, networks, several lines, and what cannot be read."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.api.http.proxies import MAX_HOPS, TrustedProxies, parse_hop

PROXIES = TrustedProxies([ip_network(text) for text in ("127.0.0.1", "10.0.0.0/8", "2001:db8:f::/48")])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        (" 203.0.113.9:51234 ", "203.0.113.9"),  # Azure Application Gateway
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("[::ffff:203.0.113.9]:80", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::1"),
        *(
            (text, None)
            for text in ("", "unknown", "_hidden", "203.0.113.9:", "203.0.113.9:70000", "203.0.113", "[::1")
        ),
        *((text, None) for text in ("[::1]x", "::1]:80", "1.2.3.4:5:6", "１.2.3.4", "1.2.3.4:\u0661", "010.0.0.1")),
    ],
)
def test_every_written_form_of_an_address_is_read_and_nothing_else(text: str, address: str | None) -> None:
    found = parse_hop(text)
    assert (None if found is None else str(found)) == address


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", [b"203.0.113.9"], "203.0.113.9"),
        ("10.200.1.1", [b"203.0.113.9"], "203.0.113.9"),
        ("2001:db8:f::7", [b"203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", [b"203.0.113.9"], "203.0.113.9"),  # a dual-stack listener
        ("127.0.0.1", [b"6.6.6.6, 203.0.113.9:51234, 10.0.0.8"], "203.0.113.9"),
        ("127.0.0.1", [b"6.6.6.6, 203.0.113.9", b"10.0.0.8"], "203.0.113.9"),  # HAProxy appends a line
        ("127.0.0.1", [b"203.0.113.9", b"", b"10.0.0.8,"], "203.0.113.9"),
        ("127.0.0.1", [b"10.0.0.7, 10.0.0.8"], "10.0.0.7"),  # inside our own network all the way
        ("127.0.0.1", [], "127.0.0.1"),
        ("198.51.100.1", [b"203.0.113.9"], "198.51.100.1"),  # a stranger's header
        ("::ffff:198.51.100.1", [b"203.0.113.9"], "198.51.100.1"),
        (None, [b"203.0.113.9"], None),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_proxy(
    peer: str | None, forwarded: list[bytes], client: str | None
) -> None:
    assert PROXIES.client(peer, forwarded) == client


@pytest.mark.parametrize("hop", [b"unknown", b"_x", b"203.0.113.9, garbage, 10.0.0.1", b"\xff"])
def test_a_hop_that_cannot_be_read_is_no_address_and_never_the_proxys(hop: bytes) -> None:
    assert PROXIES.client("127.0.0.1", [hop]) is None


def test_a_chain_longer_than_any_real_one_is_not_walked() -> None:
    own = b", ".join([b"10.0.0.1"] * (MAX_HOPS - 1))
    assert PROXIES.client("127.0.0.1", [b"203.0.113.9, " + own]) == "203.0.113.9"
    assert PROXIES.client("127.0.0.1", [b"203.0.113.9, 10.0.0.1, " + own]) is None


def test_without_trusted_proxies_only_the_connection_counts() -> None:
    assert TrustedProxies().client("127.0.0.1", [b"203.0.113.9"]) == "127.0.0.1"
