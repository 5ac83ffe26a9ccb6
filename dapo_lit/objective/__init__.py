"""The paper's equations as pure functions of tensors. Imports torch and nothing else."""
