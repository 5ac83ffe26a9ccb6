"""The training of one rollout step: packed batches, forward passes, updates. Knows nothing of Lightning."""
