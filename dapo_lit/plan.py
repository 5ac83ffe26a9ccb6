"""Estimates what a run needs: `python -m dapo_lit.plan +experiment=paper_qwen2_5_32b hardware=h800`.

Prints memory per GPU by part, time per rollout step by phase, GPU-hours and cost, the nearest change that fits if the
run does not, and the error of the time model on published runs. Needs no GPU and launches nothing.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.forecast import PlanConfig


def plan(config: PlanConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.plan import plan  # loads torch, so only once the command line has been checked

    plan(config, overrides)


def main() -> None:
    sys.exit(run_command(plan, PlanConfig, "plan"))


if __name__ == "__main__":
    main()
