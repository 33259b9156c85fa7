"""The engine's counters, and vLLM's Prometheus names for them."""
