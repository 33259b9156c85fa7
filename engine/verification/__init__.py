"""Checks that a quantized checkpoint means what its configuration says: `esclusa models verify`."""
