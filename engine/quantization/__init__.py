"""Makes quantized checkpoints: rounding, calibration, and the tensors of each format."""
