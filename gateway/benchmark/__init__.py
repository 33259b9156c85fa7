"""Measuring the gateway beside its peers: one instant upstream, one core for the gateway, the rest for everyone else.

Each part is a process of its own on loopback. Peers are given by path; none of them is a dependency.
"""
