"""The record: intent and completion of every request, durable and tamper-evident."""
