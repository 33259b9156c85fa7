"""Responses kept for callers between two requests: encrypted, for their owners alone, until their time is over."""
