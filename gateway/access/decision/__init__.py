"""A policy compiled, and what it says of one request. Pure: no files, no SQL, no clock of its own."""
