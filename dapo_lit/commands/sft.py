"""Supervised warm-up, started by dapo_lit/sft.py."""

import torch

from dapo_lit.config.sft import SftConfig
from dapo_lit.preparation.warm_up import warm_up


def sft(config: SftConfig, overrides: list[str]) -> None:
    torch.set_num_threads(config.threads)
    print(f"policy  {warm_up(config)}")
