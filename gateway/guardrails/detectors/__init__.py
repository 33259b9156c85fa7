"""Detectors of personal data and secrets, one family a file. Pure: forms and arithmetic; no actions."""
