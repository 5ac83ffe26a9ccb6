"""The time, memory and price of a run, before it is launched."""
