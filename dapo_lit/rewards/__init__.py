"""Responses to scores: rules and reward functions, in worker processes with deadlines."""
