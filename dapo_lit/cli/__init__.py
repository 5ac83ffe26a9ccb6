"""Shared by the commands: overrides, the launch of a study, locks on cells, the summary of a run."""
