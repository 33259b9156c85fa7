"""Which sequence computes how many tokens in the next step: queues, order, fairness, pacing. No torch, no text."""
