"""Anthropic's API over the same pipeline: another body, another answer, the same rules."""
