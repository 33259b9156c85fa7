"""Everything a laptop needs to run the real product: private Postgres and Valkey, a dev issuer, demo models."""
