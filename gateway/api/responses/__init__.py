"""OpenAI's Responses API over the same pipeline: items in, items out, events in its order."""
