"""A recorded step once more, under other switches."""
