"""Sampled evaluation of a model on benchmarks."""
