"""Supervised warm-up: `python -m dapo_lit.sft data=rows.jsonl policy=smollm2_135m task=gsm8k output=sft/warm`.

Rows have `prompt` and `response`. Without `data` the task's own base policy is trained: `python -m dapo_lit.sft
task=chain_sum policy=tiny`. Prints the folder of the policy, for use as `policy.path`.
"""

import sys

import torch

from dapo_lit.cli.command import run_command
from dapo_lit.config.sft import SftConfig
from dapo_lit.preparation.warm_up import warm_up


def sft(config: SftConfig, overrides: list[str]) -> None:
    torch.set_num_threads(config.threads)
    print(f"policy  {warm_up(config)}")


if __name__ == "__main__":
    sys.exit(run_command(sft, SftConfig, "sft"))
