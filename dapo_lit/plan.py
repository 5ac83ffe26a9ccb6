"""Estimates what a run needs, by the package `forecast`."""

import sys

from dapo_lit.cli.command import run_command


def main() -> None:
    from forecast.hardware import PlanConfig
    from forecast.plan import plan

    sys.exit(run_command(plan, PlanConfig, "plan"))


if __name__ == "__main__":
    main()
