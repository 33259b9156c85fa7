"""The admin REST API: governs policies, limits, keys and reads the audit trail. Gives no model use."""
