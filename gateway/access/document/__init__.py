"""A policy as it is written: its text, its typed shape, and what is wrong with it. Decides nothing."""
