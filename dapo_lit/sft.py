"""Supervised warm-up: `python -m dapo_lit.sft data=rows.jsonl policy=smollm2_135m task=gsm8k output=sft/warm`.

Rows have `prompt` and `response`. Without `data` the task's own base policy is trained: `python -m dapo_lit.sft
task=chain_sum policy=tiny`. Prints the folder of the policy, for use as `policy.path`.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.sft import SftConfig


def sft(config: SftConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.sft import sft  # loads torch, so only once the command line has been checked

    sft(config, overrides)


def main() -> None:
    sys.exit(run_command(sft, SftConfig, "sft", "data"))


if __name__ == "__main__":
    main()
