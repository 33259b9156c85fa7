"""Calls of tools in a model's text: how each family of models writes them, and how they are read while they grow."""
