"""Run folders read into tables."""
