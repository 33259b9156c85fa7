"""The governed API: who asks, what they may use, what it cost, and the proof of it."""
