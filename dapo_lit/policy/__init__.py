"""The language model: loading, pre-training, log-probs and entropy."""
