"""Numbers that a page states of the code, a config, a step of packed cells, or a study's own script (inline.py)."""

import ast
import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml
from cells import EXPERIMENTS, ROOT, cells, on_accuracy, points
from scipy import stats

from ablations.compare.contrasts import Contrast
from ablations.compare.statistics import t_interval
from ablations.designs import read_arm
from ablations.techniques import REGISTER


def configured(file: str, path: str) -> Any:
    """The value of a key of conf/FILE.yaml as that file has it.

    >>> configured("task/chain_sum", "base/stages/0/mixture/immediate")
    0.35
    """
    found = yaml.safe_load((ROOT / "conf" / f"{file}.yaml").read_text(encoding="utf-8"))
    for part in path.split("/"):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def updates(*overrides: str) -> str:
    """Updates of a rollout step of the run with these overrides.

    >>> updates("+regime=joint")
    '16'
    """
    from dapo_lit.cli.command import compose

    algorithm = compose(*overrides).algorithm
    return str(algorithm.num_prompts // algorithm.minibatch_prompts * algorithm.epochs)


def constant(file: str, name: str) -> Any:
    """The literal that a file below the repository's root gives a name at its top level; nothing is imported.

    >>> constant("dapo_lit/preflight/engine.py", "NARROW_BOUND")
    0.15
    """
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign([ast.Name(found)], given) if found == name:
                return ast.literal_eval(given)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                for target, given in zip(names, values, strict=True):
                    if isinstance(target, ast.Name) and target.id == name:
                        return ast.literal_eval(given)
    raise SystemExit(f"{file} gives {name} no literal at its top level")


def at(metric: str, study: str, arm: str, step: str) -> float:
    """The mean of a metric over an arm's runs in one step; a negative one is counted from the end."""
    values = [run.series(metric) for run in cells(study).of(arm)]
    number = int(step)
    return float(np.mean([one.iloc[number] if number < 0 else one.loc[number] for one in values]))


def mean(metric: str, study: str, arm: str) -> float:
    """The mean of a metric over an arm's runs, each with the mean over its steps."""
    return float(np.mean([run.series(metric).dropna().mean() for run in cells(study).of(arm)]))


def runs_with(metric: str, study: str, arm: str, least: str) -> str:
    """How many of an arm's runs end with a metric of at least so much."""
    return str(sum(float(run.series(metric).iloc[-1]) >= float(least) for run in cells(study).of(arm)))


def pairs(study: str) -> str:
    """Runs of the arm that has fewest."""
    runs = cells(study)
    return f"{min(len(runs.of(arm)) for arm in runs.arms)} pairs"


def needed(technique: str) -> float:
    """What training needs at least before a technique can act."""
    return REGISTER[technique].condition.least


def met(technique: str, study: str, arm: str) -> float:
    """What an arm's runs measured of that, mean over runs and steps."""
    condition, on = REGISTER[technique].condition, technique in read_arm(arm).on
    found = [condition.mean(run.metrics.reset_index().to_dict("records"), on) for run in cells(study).of(arm)]
    return float(np.mean([one for one in found if one is not None]))


def emergence_p() -> str:
    """The exact sign test of the runs in which written answers emerge with one arm and not with the other."""
    runs = cells("emergence_token_level_loss_chain_sum_rare")
    without, with_it = (
        {run.seed: run.series("task/steps_frac").iloc[-1] > 0.5 for run in runs.of(arm)} for arm in runs.arms
    )
    only = [with_it[seed] for seed in with_it if with_it[seed] != without[seed]]
    return f"p = {stats.binomtest(sum(only), len(only)).pvalue:.2g}"


def in_all(metric: str, study: str, step: str) -> float:
    """The mean of a metric in one step over all runs of a study."""
    return float(np.mean([at(metric, study, arm, step) for arm in cells(study).arms]))


@cache
def script(path: str) -> ModuleType:
    """A study's own script, below experiments/."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), EXPERIMENTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value_network() -> tuple[str, str]:
    """Seconds of a rollout step of PPO over GRPO's, with its interval."""
    found = script("value_network/compare.py").ratios()["seconds of a rollout step"]
    return f"{found.mean:.2f}", f"[{found.low:.2f}, {found.high:.2f}]"


@cache
def tokens_of_drawn() -> str:
    """Tokens after the same steps with dynamic sampling over those without, in the first 24 regimes of transfer."""
    law = script("transfer/law.py")
    ratios = law.measured(law.FIRST).groupby("regime")["tokens"].mean()
    return f"{ratios.min():.1f} to {ratios.max():.0f} times"


def smollm2(what: str) -> str:
    """What dynamic sampling does to whole runs of SmolLM2: `points` of training accuracy, `tokens` in per cent."""
    pairs = EXPERIMENTS / "smollm2_forks" / "pairs"
    outcomes = script("smollm2_forks/figure.py").differences(pairs, "dynamic_sampling", 0.0)
    found, digits = t_interval(outcomes[what == "tokens"]), 0 if what == "tokens" else 1
    ends = f"[{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return f"{found.mean:+.{digits}f} {'%' if what == 'tokens' else 'points'} {ends}"


FORKED = {
    "joint": (16, "factorial_joint/runs"),
    "sparse": (16, "fork_validation/sparse_runs"),
    "rambling": (8, "fork_validation/rambling_runs"),
    "tight_limit": (10, "fork_validation/tight_limit_runs"),
}
"""Regime -> steps of a whole run, and where the whole runs are."""


def forks_against_runs() -> str:
    """Markdown: do forks predict whole runs on the same base policies?"""
    columns = (
        "regime, state", "decided", "with the whole run's sign", "by the mean of the other bases", "error (points)",
        "of that mean", "placebo",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(line for regime in FORKED for line in _forked(regime))])


def _forked(regime: str) -> Iterator[str]:
    steps, whole = FORKED[regime]
    states = script("fork_validation/compare.py").states(EXPERIMENTS / "fork_validation" / regime, EXPERIMENTS / whole)
    for number, state in enumerate(states):
        one = state.of["all"]
        name = f"`{regime}`, before step {state.step} of {steps}" if number == 0 else f"before {state.step}"
        signs = f"{one.agree} [{one.low:.2f}, {one.high:.2f}] | {one.by_mean}" if one.decided else "| "
        sizes = f"{one.error:.1f} | {one.error_of_mean:.1f} (p {one.p:.2g})"
        placebo = f"{state.placebos_decided} of {state.placebos}"
        yield f"| {name} | {one.decided} of {one.effects} | {signs} | {sizes} | {placebo} |"


def base_mb() -> str:
    """Megabytes of a packed base policy, largest."""
    folders = [folder for folder in (EXPERIMENTS / "bases").glob("*/*") if folder.is_dir()]
    return f"{max(map(_megabytes, folders)):.0f} MB"


def packed(study: str) -> str:
    """Cells of a study, and the megabytes that they take packed."""
    folder = EXPERIMENTS / study / "runs"
    return f"{len(list(cells(study)))} runs: {_megabytes(folder):.1f} MB"


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def smollm2_dynamic_sampling() -> str:
    """Dynamic sampling on SmolLM2, mean of the effects with and without soft punishment, over seeds of the model."""
    weights = {"dapo": 0.5, "dapo-dynamic_sampling": -0.5}
    weights |= {"dapo-soft_overlong_punishment": 0.5, "dapo-soft_overlong_punishment-dynamic_sampling": -0.5}
    found = on_accuracy("length_penalty", Contrast("", "dynamic sampling", None, weights))
    return points(found.estimate).replace(" [", " points [")


NAMED: dict[str, Callable[[], str]] = {
    "tokens_of_drawn": tokens_of_drawn,
    "ppo_over_grpo": lambda: f"{value_network()[0]} times",
    "ppo_over_grpo_ends": lambda: value_network()[1],
    "smollm2_points": lambda: smollm2("points"),
    "smollm2_tokens": lambda: smollm2("tokens"),
    "smollm2_dynamic_sampling": smollm2_dynamic_sampling,
    "emergence_p": emergence_p,
    "base_mb": base_mb,
    "packed": lambda: packed("calibrate_joint"),
}
"""Name of a number in a sentence -> what makes its text."""
