"""Replays a recorded step under other switches: `python -m dapo_lit.replay runs/single/dapo/seed_0 step=10`.

Without config keys, each technique is toggled in turn. Config keys (algorithm.techniques.clip_higher=false,
algorithm.clip.high=0.5, reward.wrong_value=0) together make one arm that is compared with the recorded one. To record a
step, train with replay.record=[10]. Exit code 2: refused, with the reason.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.cli.command import reported
from dapo_lit.cli.overrides import check_overrides, parsed
from dapo_lit.config import ConfigError
from dapo_lit.techniques import REGISTER

CHANGEABLE = ("algorithm.", "reward.", "trainer.accelerator", "trainer.micro_batch_tokens", "trainer.threads")
FIXED = {
    "algorithm.num_prompts": "the recorded step has a fixed number of them",
    "algorithm.samples_per_prompt": "the recorded groups have a fixed number of them",
    "algorithm.family": "it is only a name",
    "algorithm.critic": "its weights are part of the recorded state",
    "algorithm.optimizer.betas": "it is part of the recorded optimizer",
    "algorithm.optimizer.eps": "it is part of the recorded optimizer",
    "algorithm.optimizer.weight_decay": "it is part of the recorded optimizer",
}
"""Keys below CHANGEABLE that a replay cannot change, and why."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line: a run, step=N, config keys."""
    parser = CommandParser(prog="python -m dapo_lit.replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="runs/<study>/<arm>/seed_<n>")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="step=10, then config keys to change")
    return parser.parse_args(arguments)


def read_overrides(overrides: Sequence[str]) -> tuple[int | None, dict[str, Any]]:
    """The step, None if none is named, and the config keys to change.

    Raises:
        ConfigError: an argument that is not key=value, an unknown key, or a key that a replay cannot change.
    """
    step: int | None = None
    others = []
    for override in overrides:
        if found := re.fullmatch(r"step=(.*)", override):
            if not found[1].isdigit():
                raise ConfigError(f"{override}: a step is a number, such as step=10")
            step = int(found[1])
        elif "=" not in override:
            raise ConfigError(f"{override}: not key=value; write algorithm.techniques.clip_higher=false")
        elif (name := override.split("=")[0]) in REGISTER:
            raise ConfigError(f"{override}: write algorithm.techniques.{name}={override.split('=')[1]}")
        else:
            others.append(override)
    check_overrides(others)
    changes: dict[str, Any] = {}
    for change in map(parsed, others):
        key = change.key_or_group
        if fixed := next((k for k in FIXED if key == k or key.startswith(f"{k}.")), None):
            raise ConfigError(f"{key}: a replay cannot change it, {FIXED[fixed]}")
        if not key.startswith(CHANGEABLE) or change.is_sweep_override():
            raise ConfigError(
                f"{change.input_line}: a replay keeps what was sampled; it can change keys below algorithm and reward"
            )
        changes[key] = change.value()
    return step, changes


def replay_run(run: Path, step: int | None, changes: Mapping[str, Any]) -> None:
    from dapo_lit.commands.replay import replay_run  # loads torch, so only once the command line has been checked

    replay_run(run, step, changes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    return reported(lambda: replay_run(options.run, *read_overrides(options.overrides)))


if __name__ == "__main__":
    sys.exit(main())
