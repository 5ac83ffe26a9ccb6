"""Forecast of a run before it is launched: memory by simulation, time by a stated model. dapo_lit does not need it."""
