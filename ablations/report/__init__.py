"""A study as a report."""
