"""Run folders, checkpoint files, displays, and stopping on request."""
