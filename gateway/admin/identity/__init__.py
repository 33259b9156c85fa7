"""Routes of service accounts, API keys and revocations."""
