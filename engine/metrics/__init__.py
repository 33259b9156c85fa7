"""What the engine counts, and vLLM's Prometheus names for it."""
