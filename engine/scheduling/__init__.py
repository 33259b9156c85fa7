"""Plans each step: which sequence computes how many tokens. Queues, order, fairness, pacing. No torch, no text."""
