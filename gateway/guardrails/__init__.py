"""Guardrails: personal data, secrets and prompt injection in texts, and the action that policy wants for each.

Knows texts and obligations, not who is asking. Gives `Inspection` values and guards over answers on their way out.
"""
