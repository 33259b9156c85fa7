"""OpenAI-shaped routes: parse, call the pipeline, render."""
