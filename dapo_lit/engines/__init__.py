"""Engines that sample: one protocol, the torch sampler, vLLM in this process and behind servers."""
