"""The paper's answer transformation: `python -m dapo_lit.transform data=problems.jsonl policy.path=MODEL`.

Writes problems with integer answers to `output`, and rejects with their reason to a second file; prints the counts.
Run again with the same settings after a kill, it continues and loses at most the last `chunk`.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.transform import TransformConfig


def transform(config: TransformConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.transform import transform  # loads torch, so only once the command line has been checked

    transform(config, overrides)


def main() -> None:
    sys.exit(run_command(transform, TransformConfig, "transform", "data"))


if __name__ == "__main__":
    main()
