"""Replays a recorded step under other switches: `python -m dapo_lit.replay runs/single/dapo/seed_0 step=10`.

Without config keys, each technique is toggled in turn. Config keys (algorithm.techniques.clip_higher=false,
algorithm.clip.high=0.5, reward.wrong_value=0) together make one arm that is compared with the recorded one. --html
writes the step as one page that can be played with; --json prints the table as JSON. To record a step, train with
replay.record=[10]. trust=true runs code that the run's config names (a reward function, a loss); a run folder is data
otherwise. Exit code 2: refused, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from ablations.arguments import CommandParser, add_json
from ablations.designs import Arm, arm_name
from ablations.files.layout import REPLAYS, playable_page
from ablations.files.tables import write_table
from ablations.screen import on_screen, print_table
from ablations.techniques import REGISTER
from dapo_lit.cli.command import exit_code_of, silence_libraries
from dapo_lit.cli.overrides import check_overrides, parsed
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.config.shipped import switches_of
from dapo_lit.imports import named_in

if TYPE_CHECKING:
    from dapo_lit_tools.replays.recorded_step import Recording


SCHEMA = "dapo_lit/replay/1"
"""Of what --json prints: schemas/replay.json."""


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with some keys changed."""
    tree = OmegaConf.create(config.model_dump(mode="json"))
    for key, value in changes.items():
        OmegaConf.update(tree, key, value)
    container = OmegaConf.to_container(tree)
    assert isinstance(container, dict)
    return parse({str(key): value for key, value in container.items()})


def arms_of(recording: Recording, changes: Mapping[str, Any]) -> dict[str, Config]:
    """The recorded arm first, then the arm that was asked for, or one per technique, keyed by name."""
    from dapo_lit_tools.replays.recorded_step import without_benchmarks

    config = without_benchmarks(recording.config)
    techniques = config.algorithm.techniques.model_dump()
    wanted = [changes] if changes else [{f"algorithm.techniques.{t}": not techniques[t]} for t in REGISTER]
    arms = {named(config, {}): config}
    for change in wanted:
        other = changed(config, change)
        name = named(other, change)
        if name in arms:
            raise ConfigError(f"{', '.join(f'{k}={v}' for k, v in change.items())}: that is the recorded arm, {name}")
        arms[name] = other
    return arms


def named(config: Config, change: Mapping[str, Any]) -> str:
    """An arm's name from its switches, with the changed settings after @."""
    algorithm = config.algorithm
    techniques = algorithm.techniques.model_dump()
    settings = {k: v for k, v in change.items() if not k.startswith(("algorithm.techniques.", "trainer."))}
    suffix = Arm(frozenset(), settings).name.partition("@")
    return arm_name(techniques, algorithm.family, switches_of(algorithm.family)) + "".join(suffix[1:])


def write_page(run: Path, step: int | None, changes: Mapping[str, Any], trust: bool = False) -> None:
    """Replays all combinations of the switches and writes the page of the step."""
    import torch

    from ablations.report.run_page import write_run_page
    from dapo_lit_tools.replays.page import step_page
    from dapo_lit_tools.replays.recorded_step import open_recording, without_benchmarks

    for key in changes:
        if not key.startswith("trainer."):
            raise ConfigError(f"{key}: the page starts from the recorded settings, and has switches for others")
    silence_libraries()
    recording = open_recording(run, step, None if trust else set())
    recording = replace(recording, config=changed(without_benchmarks(recording.config), changes))
    torch.set_num_threads(recording.config.trainer.threads)
    sets = [frozenset(on) for size in range(len(REGISTER) + 1) for on in combinations(REGISTER, size)]
    configs = {on: changed(recording.config, {f"algorithm.techniques.{t}": t in on for t in REGISTER}) for on in sets}
    tokenizer = recording.parts().tokenizer
    out = playable_page(run, recording.step)
    checks = between_combinations(recording.config)
    with TemporaryDirectory(dir=out.parent) as folder:
        out.write_text(
            step_page(recording, configs, checks, lambda ids: str(tokenizer.decode(ids)), Path(folder)),
            encoding="utf-8",
        )
    # Its buttons open the pages that there are.
    write_run_page(run)
    print(f"page    {out} ({out.stat().st_size / 1e6:.2f} MB), opens in a browser")


def between_combinations(config: Config) -> list[Config]:
    """Each slider of the page off its recorded value, under the switches with which it acts."""
    algorithm, on = config.algorithm, "algorithm.techniques."
    low, high, cache = algorithm.clip.low, algorithm.clip.high, algorithm.overlong.cache_tokens
    return [
        changed(config, changes)
        for changes in (
            {"algorithm.clip.low": low / 2},
            {f"{on}clip_higher": True, "algorithm.clip.high": high / 2},
            {f"{on}clip_higher": False, "algorithm.clip.low": low / 2},
            {f"{on}soft_overlong_punishment": True, "algorithm.overlong.cache_tokens": cache // 2},
            {f"{on}token_level_loss": True, "algorithm.token_level_denominator": "group"},
            {f"{on}token_level_loss": False, "algorithm.completion_level_denominator": "constant"},
        )
    ]


def replay_run(
    run: Path, step: int | None, changes: Mapping[str, Any], trust: bool = False, as_json: bool = False
) -> None:
    """Replays, writes the tables and prints one."""
    import pandas as pd
    import torch

    from dapo_lit_tools.replays.recorded_step import Replayed, open_recording, replay
    from dapo_lit_tools.replays.tables import summary_row, token_table

    silence_libraries()
    recording = open_recording(run, step, None if trust else named_in(changes))
    arms = arms_of(recording, changes)
    torch.set_num_threads(recording.config.trainer.threads)
    out = run / REPLAYS / f"step_{recording.step:06d}"
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = recording.parts().tokenizer
    rows = {}
    recorded: Replayed | None = None
    for name, config in arms.items():
        arm = replay(recording, config)
        recorded = recorded or arm
        tokens = token_table(arm, lambda ids: str(tokenizer.decode(ids)))
        write_table(out / f"{name}.parquet", tokens)
        rows[name] = summary_row(arm, recorded, tokens)
        if arm is not recorded:
            arm.log.first = arm.log.summed = None  # each is as large as the weights
    pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm").to_csv(out / "summary.csv")
    if as_json:
        arms_found = [{"arm": name, **row} for name, row in rows.items()]
        found = {"schema": SCHEMA, "run": str(run), "step": recording.step, "groups": recording.num_groups,
                 "arms": arms_found, "tables": str(out)}  # fmt: skip
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    print(f"{run}, step {recording.step}: {recording.num_groups} groups were generated")
    print_summary(rows)
    print(f"tables  {out}/summary.csv, and one row per token: {out}/<arm>.parquet")


QUANTITIES = (
    ("groups kept", "groups_kept", "d"),
    ("  not in the recorded batch", "groups_in", "d"),
    ("  missing from it", "groups_out", "d"),
    ("completions with another reward", "rewards_changed", "d"),
    ("tokens in the loss", "loss_tokens", ",d"),
    ("|advantage change|, mean", "advantage_change_mean", ".4f"),
    ("|advantage change|, max", "advantage_change_max", ".4f"),
    ("loss, mean of the updates", "loss", "+.5f"),
    ("gradient norm, mean of the updates", "grad_norm", ".4f"),
    ("cosine to recorded, first update", "cosine_first", ".4f"),
    ("cosine to recorded, sum of updates", "cosine_step", ".4f"),
    ("updates", "updates", "d"),
    ("tokens clipped at 1 - low", "clipped_low", "d"),
    ("tokens clipped at 1 + high", "clipped_high", "d"),
    ("tokens clipped at dual", "clipped_dual", "d"),
)


def print_summary(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """One column per arm, the recorded one first."""
    from ablations.figures.style import short

    names = [
        "\n".join([*short(name).split(" ", 1), *([] if place else ["(recorded)"])]) for place, name in enumerate(rows)
    ]
    lines = []
    for label, key, form in QUANTITIES:
        values = [row[key] for row in rows.values()]
        lines.append((label, *("" if value is None else format(value, form) for value in values)))
    print_table(("", *names), lines)


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
    parser.add_argument("--step", type=int, help="the recorded step; default: the only one")
    parser.add_argument("--trust", choices=("true", "false"), default="false", help="run code that the config names")
    parser.add_argument("--html", action="store_true", help="write the step as one page that can be played with")
    add_json(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="config keys to change")
    options = parser.parse_intermixed_args(arguments)  # config keys may follow --html
    if options.html and options.json == "true":
        parser.error("--html and --json: one of them")
    return options


def read_changes(overrides: Sequence[str]) -> dict[str, Any]:
    """The config keys to change, with their values.

    Raises ConfigError: a replay cannot change one of them.
    """
    if wrong := [override for override in overrides if "=" not in override]:
        raise ConfigError(f"{wrong[0]}: not key=value; write algorithm.techniques.clip_higher=false")
    check_overrides(overrides)
    changes: dict[str, Any] = {}
    for change in map(parsed, overrides):
        key = change.key_or_group
        if fixed := next((k for k in FIXED if key == k or key.startswith(f"{k}.")), None):
            raise ConfigError(f"{key}: a replay cannot change it, {FIXED[fixed]}")
        if not key.startswith(CHANGEABLE) or change.is_sweep_override():
            raise ConfigError(
                f"{change.input_line}: a replay keeps what was sampled; it can change keys below algorithm and reward"
            )
        changes[key] = change.value()
    return changes


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    trusted, as_json = options.trust == "true", options.json == "true"

    def run() -> None:
        changes = read_changes(options.overrides)
        if options.html:
            write_page(options.run, options.step, changes, trusted)
        else:
            replay_run(options.run, options.step, changes, trusted, as_json)

    return exit_code_of(run)


if __name__ == "__main__":
    sys.exit(main())
