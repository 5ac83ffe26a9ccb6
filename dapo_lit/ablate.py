"""Ablates a technique on a model and problems of your own, in one command.

    python -m dapo_lit.ablate clip_higher --model models/my_model --data problems.csv [--reward math] [key=value ...]

Finds the columns and proposes a prompt, makes the checks that every training makes, and trains a few steps without the
technique. Where it has next to nothing to act on, the command stops and says so; for clip-higher it also tries more
updates a step. Else it says what a study takes and what it can show, and runs one: DAPO with and without the technique,
pair by pair, until the difference is decided. Again, the same command continues. Every other key of a training may
follow, such as task.max_response_tokens=64, task.eval_path=test.csv, budget.steps=20.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.cli.command import compose, reported
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.cli.workers import in_child, workers_for
from dapo_lit.config import Config, config_folder
from dapo_lit.config.identity import flatten
from dapo_lit.errors import UserError, suggestion
from dapo_lit.run_files import read_metrics, read_table
from dapo_lit.screen import indented
from dapo_lit.study.designs import Arm
from dapo_lit.techniques import DAPO, REGISTER, step_mean

if TYPE_CHECKING:
    from dapo_lit.study.compare.advice import Advice

PROBE_STEPS = 3
EPOCHS = (2, 4, 8)
"""Times the epochs of the run, in the probes for clip-higher."""
SHOWN = 160
"""Characters of a response."""


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the keys of a training on it."""
    parser = CommandParser(
        prog="python -m dapo_lit.ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("technique", help=", ".join(REGISTER))
    parser.add_argument("--model", required=True, help="a folder, a hub id or a .gguf file")
    parser.add_argument("--data", required=True, help="problems and answers: JSONL, CSV, Parquet, a folder or a hub id")
    parser.add_argument("--reward", help="a rule of conf/reward (math, number, ...), or a function: module.function")
    options, own = parser.parse_known_args(arguments)
    if options.technique not in REGISTER:
        parser.error(f"{options.technique}: no such technique; {suggestion(options.technique, REGISTER)}")
    if wrong := [given for given in own if given.startswith("-") or "=" not in given]:
        parser.error(f"{wrong[0]}: not key=value")
    return options, own


def ablate(options: argparse.Namespace, own: list[str], command: str) -> list[str]:
    """Probes; returns the command line of the study.

    Raises UserError: something is wrong, or the technique cannot act here.
    """
    check_overrides(own)
    without = Arm(DAPO - {options.technique}).name
    arms = [without, Arm(DAPO | {options.technique}).name]
    settings = [
        "+experiment=hf", *proposed(options, own), *own, "+study=leave_one_out",
        f"study.name=ablate_{options.technique}", f"study.arms=[{','.join(arms)}]", f"study.reference={without}",
    ]  # fmt: skip
    if not any(given.startswith("study.until=") for given in own):
        settings.append("study.until=decided")
    probed = probe(options.technique, settings, without)
    print(f"probe     {PROBE_STEPS} steps without {REGISTER[options.technique].label}, at the full learning rate")
    print("\n".join(map(indented, measured(probed))))
    if not probed.advice.acts:
        raise UserError(refusal(options.technique, settings, without, probed, command))
    print("\n".join(cost(probed)), flush=True)
    return ["-m", *settings, "preflight=false"]


def proposed(options: argparse.Namespace, own: Sequence[str]) -> list[str]:
    """The settings that follow from model and data, printed one by one; those on the command line are left alone."""
    from dapo_lit.data.proposals import find_columns, propose_reward, propose_template
    from dapo_lit.data.sources import load_with_selection
    from dapo_lit.policy.load import load_tokenizer

    named, label = {given.split("=")[0] for given in own}, Path(options.data).stem
    columns = {} if "task.columns" in named else find_columns(options.data)
    given = [f"policy.path={quoted(options.model)}", f"task.path={quoted(options.data)}"]
    given += [f"task.columns={{{', '.join(f'{k}: {v}' for k, v in columns.items())}}}"] if columns else []
    problems = load_with_selection(options.data, "train", columns=columns)[0] if columns else []
    reward = options.reward or propose_reward(problem.answer for problem in problems)
    is_rule = (config_folder() / "reward" / f"{reward}.yaml").is_file()
    given += [f"reward={reward}" if is_rule else f"reward.function={reward}"]
    defaults = {
        "task.label": "".join(c if c.isalnum() else "_" for c in label),
        "study_name": f"ablate_{options.technique}_{label}",
        "study.metric": "" if "task.eval_path" in named else "rollout/accuracy",
    }
    given += [f"{key}={value}" for key, value in defaults.items() if value and key not in named]
    config = compose("+experiment=hf", *given, *own, "+study=leave_one_out", "study.arm=dapo")
    if "task.template" not in named:
        is_chat = bool(load_tokenizer(config.policy.path or "").chat_template)
        template = propose_template(config.reward.extraction, is_chat)
        given.append(f"task.template={template}")
        print(f"prompt    the template {template} (your own: task.template=FILE.yaml)")
    if columns:
        print(f"columns   problem from `{columns['problem']}`, answer from `{columns['answer']}`")
    print(f"reward    {reward} (reads {config.reward.extraction})")
    return given


def quoted(text: str) -> str:
    """A path as Hydra takes it."""
    return text if re.fullmatch(r"[\w./-]+", text) else f"'{text}'"


@dataclass(frozen=True)
class Probed:
    """A few steps without the technique."""

    study: Config
    """A run of the study."""
    updates: int
    """A step of the probe."""
    rows: list[dict[str, Any]]
    advice: Advice


def probe(technique: str, settings: Sequence[str], arm: str, epochs: int = 1) -> Probed:
    """Checks the run and trains a few steps in a process of its own, whose output goes into a log.

    epochs: times those of the run; the checks are made for the run's own only.
    """
    from dapo_lit.study.compare.advice import advice_on, findings, updates_of

    own = compose(*settings, f"study.arm='{arm}'")
    epochs *= own.algorithm.epochs
    overrides = [
        *settings, f"study.arm='{arm}'", f"study_name={own.study_name}_probe/epochs_{epochs}", "study.until=null",
        f"budget.steps={PROBE_STEPS}", "algorithm.optimizer.warmup_steps=0", "evaluation.num_problems=1",
        "evaluation.final_samples=null", f"algorithm.epochs={epochs}", "logger.rollouts_every=1",
    ]  # fmt: skip
    if epochs > own.algorithm.epochs:
        overrides.append("preflight=false")
    config = compose(*overrides)
    if code := in_child(lambda: reported(lambda: train_probe(config, overrides))):
        raise SystemExit(code)
    rows = read_metrics(run_folder(config, arm)).rows
    algorithm = flatten(config.model_dump(mode="json")["algorithm"])
    return Probed(own, updates_of(algorithm), rows, advice_on(technique, rows, algorithm, findings()))


def run_folder(config: Config, arm: str) -> Path:
    from dapo_lit.runs.run_folder import run_path

    return run_path(config, arm)


def train_probe(config: Config, overrides: list[str]) -> None:
    """The checks of a training, once and on the screen, then the training itself.

    Raises UserError: no group had both right and wrong answers, so neither arm of a study would learn from any.
    """
    from dapo_lit.train import arm_of, check_study, train

    check_study([config])
    folder = Path(config.runs_dir) / config.study_name
    folder.mkdir(parents=True, exist_ok=True)
    print(f"training {config.budget.steps} steps; what they print is in {folder}/probe.log", flush=True)
    with (folder / "probe.log").open("a") as log, redirect_stdout(log):
        train(config.model_copy(update={"preflight": False}), overrides)
    run = run_folder(config, arm_of(config))
    rows = read_metrics(run).rows
    if not step_mean(rows, "rollout/groups_mixed_frac"):
        table = read_table(next(iter(sorted((run / "rollouts").glob("*.parquet")))), ["response"])
        response = shorten(str(table["response"].iloc[0]), SHOWN, placeholder=" ...")
        raise UserError(
            "no group of the probe had both right and wrong answers "
            f"({step_mean(rows, 'rollout/accuracy'):.0%} right), so there is nothing to learn. Take problems "
            "nearer the policy's level, a prompt with a worked example (task.template=FILE.yaml), another --reward, or "
            "a longer task.max_response_tokens "
            f"({step_mean(rows, 'rollout/truncated_frac'):.0%} are truncated). One response: {response!r}"
        )


def measured(probed: Probed) -> list[str]:
    """What the probe measured, a line each."""
    means = dict[str, float]()
    for key in ("rollout/accuracy", "rollout/groups_mixed_frac", "rollout/truncated_frac", "rollout/length_mean"):
        means[key] = step_mean(probed.rows, key) or 0.0
    accuracy, mixed, truncated, length = means.values()
    updates = probed.updates
    lines = [
        f"accuracy {accuracy:.1%}; {mixed:.0%} of the groups mixed; {truncated:.1%} truncated; {length:.0f} tokens",
        f"{probed.advice.amount}, {updates} update{'' if updates == 1 else 's'} a step",
    ]
    like = [f"like the study {found.study}, which found {found.words}" for found in probed.advice.like[:1]]
    return [*lines, *(like or ["no study of this project resembles it"])]


def refusal(technique: str, settings: Sequence[str], arm: str, probed: Probed, command: str) -> str:
    """Why there is no study; for clip-higher, with the epochs that would let it act, which are tried."""
    record, epochs = REGISTER[technique], probed.study.algorithm.epochs
    lines = [f"{record.label} would have next to nothing to act on, so no study is run."]
    if technique != "clip_higher":
        return "\n".join([*lines, record.regime.lever])
    for times in EPOCHS:
        print(f"probe     the same with algorithm.epochs={epochs * times}", flush=True)
        other = probe(technique, settings, arm, times)
        print("\n".join(map(indented, measured(other)[:2])), flush=True)
        if other.advice.acts:
            lines += [f"It acts with {epochs * times} epochs a step. To study it so:"]
            return "\n".join([*lines, f"  {command} algorithm.epochs={epochs * times}"])
    return "\n".join(
        [*lines, f"Nor with {epochs * EPOCHS[-1]} epochs; a higher algorithm.optimizer.lr moves ratios too."]
    )


def cost(probed: Probed) -> list[str]:
    """Pairs, time and tokens of the study, and the effect that it can show, a line each."""
    from dapo_lit.study.compare.advice import findings
    from dapo_lit.study.compare.sequential import planned_looks
    from dapo_lit.study.compare.statistics import smallest_effect
    from dapo_lit.study.read.outcomes import in_words

    config, last, steps = probed.study, probed.rows[-1], probed.study.budget.steps
    study = config.study
    assert study is not None
    looks = planned_looks(study.max_pairs) if study.until else (len(study.seeds),)
    seconds, tokens = (last[key] / last["step"] for key in ("wall_s", "tokens_generated"))
    workers = workers_for(config, 2 * looks[0])

    def of(pairs: int) -> str:
        runs = 2 * pairs
        hours = runs * steps * seconds / workers / 3600
        time = f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:.0f} hours"
        count = f"{pairs} pair{'' if pairs == 1 else 's'}"
        return f"{count}: about {time} and {runs * steps * tokens / 1e6:.2g} million tokens"

    noise = 100 * sampling_noise(config, probed.rows)
    ends = sorted({looks[0], looks[-1]})
    least = " and ".join(f"{noise * (smallest_effect(n) or 0):.1f} with {n} pairs" for n in ends)
    toy = [row.sd * (smallest_effect(12) or 0) for row in findings() if row.n >= 12]
    return [
        f"study     pairs of runs of {steps} steps, with and without it; looks after {', '.join(map(str, looks))}",
        *(f"  {of(pairs)}" for pairs in ends),
        f"  ({seconds:.0f} s a step, {workers} runs at a time; evaluations are not counted)",
        f"  smallest effect on {in_words(study.metric)} that it finds, in points:",
        f"  {least}, if sampling were the only noise;",
        f"  {min(toy):.1f} to {max(toy):.1f} with 12 pairs in this project's studies of small tasks",
    ]


def sampling_noise(config: Config, rows: Sequence[Mapping[str, Any]]) -> float:
    """Standard deviation of a paired difference in accuracy if every completion were a coin of the probe's accuracy."""
    from dapo_lit.data.sources import load_heldout

    algorithm, evaluation, steps = config.algorithm, config.evaluation, config.budget.steps
    points = max(1, min(3, steps // 3)) if steps <= 30 else steps // 10  # as study/read/outcomes.py averages
    completions = algorithm.num_prompts * algorithm.samples_per_prompt * points
    if config.task.eval_path:
        problems = len(load_heldout(config.task.eval_path, {str(k): v for k, v in (config.task.columns or {}).items()}))
        completions = min(problems, evaluation.num_problems) * (evaluation.final_samples or evaluation.samples)
    accuracy = step_mean(rows, "rollout/accuracy") or 0.0
    return float((2 * accuracy * (1 - accuracy) / completions) ** 0.5)


def main(arguments: Sequence[str]) -> int:
    options, own = parse_arguments(arguments)
    command = shlex.join(["python", "-m", "dapo_lit.ablate", *arguments])
    study: list[str] = []
    if code := reported(lambda: study.extend(ablate(options, own, command))):
        return code
    print(shlex.join(["python", "-m", "dapo_lit.train", *study]), flush=True)
    from dapo_lit import train

    sys.argv[1:] = study
    train.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
