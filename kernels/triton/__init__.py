"""Triton for GPUs: same op names and contracts."""
