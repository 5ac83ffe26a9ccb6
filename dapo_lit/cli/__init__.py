"""What the commands share: overrides, the launch of a study, who works on which cell."""
