"""Strict readers of documents: JSON, YAML with places, and the words for what a schema found. Knows no domain."""
