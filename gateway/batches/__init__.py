"""Files that callers keep here, and batches of requests that run under their name."""
