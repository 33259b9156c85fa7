"""Logs, metrics and traces: names and set-up, in one place each."""
