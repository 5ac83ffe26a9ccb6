"""Arms compared: contrasts, statistics, claims."""
