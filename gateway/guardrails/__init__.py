"""What a text holds: personal data, secrets and attempts to steer a model; and the action that policy wants for them.

Knows texts and obligations, not who is asking. Gives `Inspection` values and guards over answers on their way out.
"""
