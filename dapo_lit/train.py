"""Trains one policy: `python -m dapo_lit.train +experiment=dapo`; several with `-m`. `--help` lists the groups.

Prints a table of the policy before and after, and the paths of the run and its figure.
"""

import sys
from collections.abc import Iterable

from dapo_lit.cli.command import reported, run_command
from dapo_lit.cli.workers import in_child
from dapo_lit.config import Config


def train(config: Config, overrides: list[str]) -> None:
    from dapo_lit.commands.train import train  # loads torch, so only once the command line has been checked

    train(config, overrides)


def check_study(configs: Iterable[Config]) -> int:
    from dapo_lit.commands.train import check_study  # here, so that the processes of the cells inherit the imports

    return in_child(lambda: reported(lambda: check_study(configs)))


def print_findings(config: Config) -> int:
    from dapo_lit.commands.train import print_findings

    return print_findings(config)


def is_decided(config: Config) -> bool:
    from dapo_lit.commands.train import is_decided

    return is_decided(config)


def main() -> None:
    renamed = {"regime.bases": "study.bases"}  # as the commands of committed studies have it
    sys.exit(run_command(train, Config, "config", None, renamed, check_study, print_findings, is_decided))


if __name__ == "__main__":
    main()
