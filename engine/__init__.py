"""The LLM engine: tokens, blocks, batches. Knows no users, HTTP, SQL or policies."""
