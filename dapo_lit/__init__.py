"""Which of DAPO's techniques matters, and by how much: RL of language models with every technique a switch."""
