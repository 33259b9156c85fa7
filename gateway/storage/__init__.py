"""Postgres and Valkey: connections, sessions, naming. Knows no domain."""
