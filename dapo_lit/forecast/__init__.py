"""The memory of a training step by simulation, and the sizes that `auto` becomes."""
