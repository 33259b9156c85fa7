"""Readable torch: the oracle of every op."""
