"""Generated tasks, and rewards that belong to them."""
