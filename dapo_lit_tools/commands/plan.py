"""Estimates what a run needs, by `dapo_lit_tools.planning`."""

import sys

from dapo_lit.cli.command import run_command


def main() -> None:
    from dapo_lit_tools.planning.hardware import PlanConfig
    from dapo_lit_tools.planning.plan import plan

    sys.exit(run_command(plan, PlanConfig, "plan"))


if __name__ == "__main__":
    main()
