"""Routes of the audit trail and of kept content."""
