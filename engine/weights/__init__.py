"""Reading checkpoints: safetensors and GGUF, strict about missing and unused tensors."""
