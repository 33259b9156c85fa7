"""Measuring our engine beside its peers: same weights, same token ids, one machine, one run.

Each system runs in a process of its own, so that thread pools and memory never mix. Peers are given by path; none of
them is a dependency.
"""
