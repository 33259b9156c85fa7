"""The KV cache as blocks: who holds which, which are shared by prefix, how long they live. No torch, no text."""
