"""A batched sampler in plain torch."""
