"""Replay of a recorded step under other switches."""
