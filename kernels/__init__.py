"""Numeric operations, one per file: reference (readable torch), cpu (C++), triton (GPU); same names, one contract.

Imports nothing heavy: transformers probes a package of this name on import.
"""
