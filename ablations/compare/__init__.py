"""Comparison of arms: contrasts and statistics."""
