"""Back ends: the local engine, or an OpenAI-compatible upstream."""
