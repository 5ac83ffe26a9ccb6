"""What a run will need: memory by simulation, time by a stated model."""
