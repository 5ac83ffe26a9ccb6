"""Comparison of arms: contrasts and statistics."""

SIGN_FLIPS = 0
"""The seed of the signs that tests draw, a constant: two reports of the same runs print the same p-values."""
