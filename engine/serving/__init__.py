"""The engine at work: the step loop, its thread, its asyncio and offline faces, and what happens when a step fails."""
