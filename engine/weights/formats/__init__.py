"""Checkpoints stored quantized: one file a format, each of which reads a matrix into its neutral value."""
