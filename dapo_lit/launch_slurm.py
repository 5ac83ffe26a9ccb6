"""Writes the SLURM script of a run: `python -m dapo_lit.launch_slurm +experiment=... nodes.train=2 nodes.sample=2`.

The job trains on some machines and, with `nodes.sample`, runs servers of vLLM on others: it starts them, waits until
they answer, starts a failed one again, gives the trainers their addresses and a token, ends them, and requeues itself
before its limit. The config is checked here, before the job waits in a queue.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.launch import LaunchConfig


def launch(config: LaunchConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.launch_slurm import launch  # loads torch, so only once the command line has been checked

    launch(config, overrides)


def main() -> None:
    sys.exit(run_command(launch, LaunchConfig, "launch_slurm"))


if __name__ == "__main__":
    main()
