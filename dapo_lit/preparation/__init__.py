"""What comes before training: rewritten answers, supervised warm-up."""
