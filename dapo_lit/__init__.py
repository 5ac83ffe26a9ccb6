"""Which of DAPO's techniques matters, and by how much: reinforcement learning of language models with every technique a switch."""
