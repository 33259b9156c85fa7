"""Limits: windows, budgets, concurrency. Gives a `LimitVerdict`; knows no policy rules and no credentials."""
