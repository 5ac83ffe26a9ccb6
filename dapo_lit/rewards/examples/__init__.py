"""Rewards that are no mathematics, to copy from: short programs that are run, and a model that judges."""
