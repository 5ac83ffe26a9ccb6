"""Checks before the first step and after the first few: each refuses, warns or reports."""
