"""A step as one forward pass: batch tensors, logits processors, sampling, embeddings, device, KV memory. No queues."""
