"""One rollout step: engines that sample, dynamic sampling, micro-batches."""
