"""Mathematical answers: text to structure, and the comparison of two structures. No text is ever evaluated as code."""
