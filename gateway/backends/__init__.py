"""Where answers come from: the local engine or an OpenAI-compatible upstream."""
