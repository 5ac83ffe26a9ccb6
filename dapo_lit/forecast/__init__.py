"""Forecast of a run: memory by simulation, time by a stated model."""
