"""Text to score: extraction of the answer, equivalence, verification in a pool."""
