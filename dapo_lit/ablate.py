"""Ablates a technique, or a part of your own, in one command.

    python -m dapo_lit.ablate clip_higher --model models/my_model --data problems.csv [--reward math] [key=value ...]
    python -m dapo_lit.ablate my_file.maxrl --option scale=0.5 [--on dapo-soft_overlong_punishment] [key=value ...]
    python -m dapo_lit.ablate all --model models/my_model --data problems.csv --budget 2h

Finds the columns and proposes a prompt, makes the checks that every training makes, and trains a few steps without the
technique. Where it has next to nothing to act on, the command stops and says so; for clip-higher it also tries more
updates a step. Else it says what a study takes and what it can show, and runs one: DAPO with and without the technique,
pair by pair, until the difference is decided. On a terminal it asks before it starts one (--yes: it does not ask;
--plan: it stops there). Again, the same command continues. Every other key of a training may follow, such as
task.max_response_tokens=64, task.eval_path=test.csv, budget.steps=20. `all` asks which technique matters: a few steps
of DAPO say what a run takes, and the budget decides between all combinations of the techniques, half of them, and one
technique at a time. A part of your own is a function in a file of yours (a loss, an estimator of advantages, a penalty,
a correction, a controller of the entropy bonus), or a technique's record (docs/new_loss.md). The study compares the arm
`--on` with and without it. Without --model and --data it trains the package's policy on sums, in the regime where the
techniques act (conf/regime/joint.yaml).
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TextIO

from ablations.arguments import CommandParser, add_json
from ablations.command_text import command, setting
from ablations.designs import ARMS, Arm, read_arm
from ablations.ending import keeping
from ablations.errors import UserError, suggestion
from ablations.files.layout import ROLLOUTS
from ablations.files.metrics_file import read_metrics
from ablations.files.tables import read_table
from ablations.screen import on_screen
from ablations.techniques import DAPO, REGISTER, step_mean
from ablations.trainer import flatten
from dapo_lit.callable_module import make_callable
from dapo_lit.cli.command import compose, exit_code_of, run_command
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.cli.study_launch import check_code
from dapo_lit.cli.workers import in_child, workers_for
from dapo_lit.config import Config, config_folder
from math_answers.forms import FORMS

if TYPE_CHECKING:
    from dapo_lit.cli.study_cost import RunCost

SCHEMA = "dapo_lit/ablate/1"
ALL = "all"
PROBE_STEPS = 3
FEW_MIXED = 0.02
"""Share of mixed groups in the probe below which a warning says that nearly nothing is learned."""
EPOCHS = (2, 4, 8)
"""Times the epochs of the run, in the probes for clip-higher."""
Start = tuple[Path, list[str]]
"""The folder of a study, and the command line that runs it."""


@dataclass(frozen=True)
class Probe:
    """A few steps of an arm."""

    rows: list[dict[str, Any]]
    algorithm: dict[str, Any]
    """Its settings below `algorithm`."""
    start_s: float
    """What it took besides its steps, checks left out."""


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the keys of a training on it."""
    parser = CommandParser(prog="python -m dapo_lit.ablate", description=__doc__)
    parser.add_argument(
        "technique", help=f"{', '.join(REGISTER)}, {ALL}, or a function or technique of yours: module.name"
    )
    parser.add_argument(
        "--option", action="append", default=[], help="name=value: an option of your function; repeatable"
    )
    parser.add_argument("--on", default="dapo", help="the arm that your function is added to, such as naive_grpo")
    parser.add_argument("--model", help="a folder or a hub id")
    parser.add_argument("--data", help="problems and answers: JSONL, CSV, Parquet, a folder or a hub id")
    parser.add_argument("--reward", help="a rule of conf/reward (math, number, ...), or a function: module.function")
    parser.add_argument("--budget", help="for `all`: 90m, 2h, or minutes; default: half of the combinations, six seeds")
    parser.add_argument(
        "--as-given", action="store_true", help="use the keys as a complete run, as `convert` prints it"
    )
    parser.add_argument("--plan", action="store_true", help="print what a study costs and can show, and stop")
    parser.add_argument("--yes", action="store_true", help="start without asking")
    add_json(parser)
    options, own = parser.parse_known_args(arguments)
    own_part = "." in options.technique
    if options.technique not in (*REGISTER, ALL) and not own_part:
        parser.error(f"{options.technique}: no such technique; {suggestion(options.technique, [*REGISTER, ALL])}")
    if not own_part and (options.option or options.on != "dapo"):
        parser.error(f"--option and --on go with a function of yours; {options.technique} is a technique")
    if options.as_given:
        if options.reward:  # a group of the run's here
            own, options.reward = [f"reward={options.reward}", *own], None
        if own_part or options.technique == ALL or options.model or options.data:
            parser.error("--as-given goes with one technique, and with the keys of a run instead of --model and --data")
    elif (options.model is None) != (options.data is None) or (options.model is None and not own_part):
        parser.error(f"{'--data' if options.model else '--model'} is needed: a model of yours and problems for it")
    if options.reward and options.data is None:
        parser.error("--reward goes with --model and --data")
    if wrong := [given for given in options.option if not re.match(r"\w+=.", given)]:
        parser.error(f"--option {wrong[0]}: not name=value")
    if options.budget is not None and options.technique != ALL:
        parser.error(f"--budget chooses the design of `ablate {ALL}`; for one technique: study.max_pairs=16")
    if options.budget is not None and minutes(options.budget) is None:
        parser.error(f"--budget={options.budget}: not a time; 90m, 2h or minutes")
    if options.json == "true" and not options.plan:
        parser.error("--json goes with --plan; the runs that follow are read with status, decide and report")
    if wrong := [given for given in own if given.startswith("-") or "=" not in given]:
        parser.error(f"{wrong[0]}: not key=value")
    return options, own


def ablate(options: argparse.Namespace, own: list[str], typed: str, planned: list[dict[str, Any]]) -> list[Start]:
    """Probes; returns the study, none if it is not to be started.

    planned: with --json takes the plan (schemas/ablate.json).

    Raises UserError: something is wrong, or the technique cannot act here.
    """
    check_overrides(own)
    technique, (base, on) = options.technique, base_run(options, own)
    arm, treated_arm = Arm(on - {technique}).name, Arm(on | {technique}).name
    settings = [
        *base, "+study=leave_one_out", f"study.name=ablate_{technique}",
        f"study.arms=[{arm},{treated_arm}]", f"study.reference={arm}",
    ]  # fmt: skip
    config, record = compose(*settings, f"study.arm='{arm}'"), REGISTER[technique]
    check_code(config)
    tried, acts = probe(technique, config, settings, 1)
    if acts:
        treated = compose(*settings, f"study.arm='{treated_arm}'")
        estimate = estimated(config, tried, treated)
        print("\n".join(cost(estimate)), flush=True)
        study = ["-m", *settings, "preflight=false"]
        if options.json == "true":
            planned.append({"schema": SCHEMA, "technique": technique, "study_name": config.study_name,
                            "command": command("train", *study), **estimate})  # fmt: skip
            return []
        return to_start(options, study, config, estimate)
    reason = f"{record.label} would have next to nothing to act on, so no study is run."
    if technique != "clip_higher":
        raise UserError(f"{reason}\n{record.condition.lever}")
    for times in EPOCHS:
        if probe(technique, config, settings, times)[1]:
            epochs = f"algorithm.epochs={config.algorithm.epochs * times}"
            raise UserError(f"{reason}\nIt acts with {epochs}; to study it so:\n  {typed} {epochs}")
    raise UserError(
        f"{reason}\nNor with {EPOCHS[-1]} times the epochs; a higher algorithm.optimizer.lr moves ratios too."
    )


def base_run(options: argparse.Namespace, own: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """The settings that the arms of a technique share, and the other techniques that are on in both."""
    if not options.as_given:
        return ["+experiment=hf", *proposed(options, own), *own], DAPO
    # Keys of the study exist once it is chosen, below.
    switches = compose(*(given for given in own if not given.startswith("study."))).algorithm.techniques
    on = frozenset(name for name in REGISTER if getattr(switches, name))
    return [given for given in own if not given.startswith("algorithm.techniques.")], on


def ablate_part(options: argparse.Namespace, own: list[str], planned: list[dict[str, Any]]) -> list[Start]:
    """Like `ablate`, for a function in a file of the user's: it is added to the arm `--on`.

    Raises UserError: the function cannot be used, or needs what the run does not have.
    """
    from dapo_lit.switches.algorithm import check_algorithm
    from dapo_lit.switches.parts import is_technique, own_technique, slot_of

    check_overrides(own)
    path, name = options.technique, options.technique.rpartition(".")[2]
    record = own_technique(path) if is_technique(path) else None
    try:
        reference = read_arm(options.on)
        if record:
            treated, kind = Arm(reference.on | {path}, reference.settings), "added to"
        else:
            slot = slot_of(path)
            given = "".join(f"@{slot.options}.{option}" for option in options.option)
            treated, kind = read_arm(f"{options.on}@{slot.key}={path}{given}"), f"as algorithm.{slot.key} of"
    except ValueError as error:
        raise UserError(str(error)) from None
    if record and options.option:
        raise UserError(f"--option {options.option[0]}: {path} is a technique, and has no options")
    print(f"{name}: {kind} {reference.name}, with and without it", flush=True)
    if options.data is None:
        named = {key.split("=")[0] for key in own}
        defaults = {"study_name": f"ablate_{name}", "study.until": "decided"}
        filled = [setting(key, value) for key, value in defaults.items() if key not in named]
        base = ["+experiment=dapo", "+regime=joint", *filled, *own]
    else:
        base = ["+experiment=hf", *proposed(options, own), *own]
    settings = [
        *base, "+study=leave_one_out", f"study.name=ablate_{name}",
        setting("study.arms", [reference.name, treated.name]), setting("study.reference", reference.name),
        # Both arms: a metric that only one of them logs compares nothing.
        *([setting("logger.own_metrics", [path])] if record and record.metrics else []),
    ]  # fmt: skip
    config = compose(*settings, f"study.arm='{reference.name}'")
    check_code(config)
    # Before the probe, which trains the arm without it.
    check_algorithm(other := compose(*settings, f"study.arm='{treated.name}'"))
    tried = probed(config, settings, reference.name, 1, name)
    if record:
        acts, amount = record.condition.judged(tried.rows, on=False)
        print(f"  {amount}", flush=True)
        if acts is False:
            raise UserError(
                f"{record.label} would have next to nothing to act on, so no study is run.\n{record.condition.lever}"
            )
    estimate = estimated(config, tried, other)
    print("\n".join(cost(estimate)), flush=True)
    study = ["-m", *settings, "preflight=false"]
    if options.json == "true":
        planned.append({"schema": SCHEMA, "technique": path, "study_name": config.study_name,
                        "command": command("train", *study), **estimate})  # fmt: skip
        return []
    return to_start(options, study, config, estimate)


def minutes(text: str) -> float | None:
    """A budget in minutes; None if it is no time.

    >>> minutes("2h"), minutes("90m"), minutes("45"), minutes("1h30"), minutes("0")
    (120.0, 90.0, 45.0, None, None)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(h|m|min)?", text.strip())
    return (float(found[1]) * (60 if found[2] == "h" else 1) or None) if found else None


def ablate_all(options: argparse.Namespace, own: list[str], planned: list[dict[str, Any]]) -> list[Start]:
    """Probes DAPO, chooses a design by the budget; returns its study, none if it is not to be started.

    Raises UserError: the smallest design takes more than the budget.
    """
    from ablations.compare.advice import advice, findings
    from ablations.compare.affordable import DESIGNS, LEAST, affordable, sight

    check_overrides(own)
    base = ["+experiment=hf", *proposed(options, own), *own, "+study=leave_one_out", "study.name=ablate_all"]
    config = compose(*base, "study.arm=dapo")
    check_code(config)
    tried = probed(config, base, "dapo", 1)
    rows = tried.rows
    for technique, record in REGISTER.items():
        found = advice(technique, rows, tried.algorithm, ())
        print(f"  {record.label}: {'' if found.acts else 'has next to nothing to act on; '}{found.amount}")
    known, steps, budget = findings(), config.budget.steps, minutes(options.budget) if options.budget else None
    seconds, workers = rows[-1]["wall_s"] / rows[-1]["step"], workers_for(config, 16 * LEAST)
    named = {arm.name: "dynamic_sampling" in arm.on for design in DESIGNS for arm in ARMS[design]()}
    runs = run_costs(config, tried, named)
    minutes_of = {arm: run.seconds / 60 for arm, run in runs.items()}
    choice = affordable(minutes_of, workers, budget)
    if choice is None:
        needed = sum(minutes_of[arm.name] for arm in ARMS["leave_one_out"]()) * LEAST / workers
        raise UserError(
            f"--budget {options.budget}: {LEAST} seeds of the smallest design, one technique at a time, take about "
            f"{needed:,.0f} minutes at {seconds:.1f} s a step; fewer budget.steps, or one technique"
        )
    chosen = {arm.name: runs[arm.name] for arm in ARMS[choice.design]()}
    tokens = round(choice.seeds * sum(run.tokens for run in chosen.values()))
    print(f"study     {choice.words}: {choice.runs} runs of {steps} steps, about {choice.minutes:,.0f} minutes and "
          f"{tokens:,} tokens")  # fmt: skip
    print(f"  can see, {sight(choice, known)}")
    print(f"  ({seconds:.1f} s a step in DAPO, {workers} at a time, start and evaluations counted)", flush=True)
    reference = "dapo" if choice.design == "leave_one_out" else "naive_grpo"
    study = [
        "-m", *base, f"study.arms=[{choice.design}]", f"study.reference={reference}", "study.until=null",
        setting("study.seeds", list(range(choice.seeds))), *([setting("study.families", choice.families)] if
        choice.families else []), "preflight=false",
    ]  # fmt: skip
    costs = {
        "pairs": choice.seeds,
        "minutes": choice.minutes,
        "tokens": tokens,
        "finds_points": choice.finds(choice.noise(sampling_noise(config, rows))),
    }
    estimate = {
        "metric": config.own_study.metric, "looks": [choice.seeds], "steps": steps, "seconds_a_step": seconds,
        "workers": workers, "costs": [costs], "runs": {arm: asdict(run) for arm, run in chosen.items()},
    }  # fmt: skip
    if options.json == "true":
        planned.append({"schema": SCHEMA, "technique": ALL, "study_name": config.study_name,
                        "command": command("train", *study), **estimate})  # fmt: skip
        return []
    return to_start(options, study, config, estimate)


def to_start(options: argparse.Namespace, study: list[str], config: Config, estimate: Mapping[str, Any]) -> list[Start]:
    """The study if its user wants it started, its estimate kept; else none, and its command is printed."""
    from dapo_lit.cli.study_cost import promise

    if not options.plan and (options.yes or agreed()):
        folder = Path(config.runs_dir) / config.study_name
        promise(folder, estimate)
        return [(folder, study)]
    print(f"Nothing was started. To start it:\n{command('train', *study)}", flush=True)
    return []


def agreed() -> bool:
    """Asks on a terminal before hours begin; elsewhere nobody can answer, and whoever wrote the command meant it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    try:
        return input("Start it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def proposed(options: argparse.Namespace, own: Sequence[str]) -> list[str]:
    """The settings that follow from model and data, printed one by one; those on the command line are left alone."""
    from dapo_lit.data.sources import load_with_selection
    from dapo_lit.policy.load import load_tokenizer

    named, label = {given.split("=")[0] for given in own}, re.sub(r"\W", "_", Path(options.data).stem)
    columns = {} if "task.columns" in named else find_columns(options.data)
    given = [setting("policy.path", options.model), setting("task.path", options.data)]
    if columns:
        given.append(setting("task.columns", columns))
        print(f"columns   problem from `{columns['problem']}`, answer from `{columns['answer']}`")
    problems = load_with_selection(options.data, "train", columns=columns)[0] if columns else []
    reward = options.reward or propose_reward(problem.answer for problem in problems)
    is_rule = (config_folder() / "reward" / f"{reward}.yaml").is_file()
    given.append(f"reward={reward}" if is_rule else f"reward.function={reward}")
    name = options.technique.rpartition(".")[2]
    defaults = {"task.label": label, "study_name": f"ablate_{name}_{label}", "study.until": "decided"}
    if "task.eval_path" not in named:
        defaults["study.metric"] = "rollout/accuracy"
    given += [setting(key, value) for key, value in defaults.items() if key not in named]
    config = compose("+experiment=hf", *given, *own, "+study=leave_one_out", "study.arm=dapo")
    print(f"reward    {reward} (reads {config.reward.extraction}; your own: --reward)")
    if "task.template" not in named:
        is_chat = bool(load_tokenizer(options.model).chat_template)
        given.append(f"task.template={propose_template(config.reward.extraction, is_chat)}")
        print(f"prompt    {given[-1]} (your own: task.template=FILE.yaml)")
    return given


COLUMNS = {
    "problem": ("problem", "question", "prompt", "query", "instruction", "input"),
    "answer": ("answer", "final_answer", "ground_truth", "reference", "solution", "target", "gold", "label", "output"),
}
"""Names by preference; a column of worked solutions is often called `solution`, so `answer` comes before it."""


def find_columns(path: str) -> dict[str, str]:
    """The columns of problem and answer in a file's first row; {} where reading needs no names.

    Raises DataError: there is no column with one of the usual names.
    """
    from dapo_lit.data.hub import resolve_files
    from dapo_lit.data.rows import BadRows, DataError, read_rows
    from dapo_lit.data.sources import PATH, is_published_schema

    _, files = resolve_files(path, "train", key=PATH)
    first = next((row for file in files for row in read_rows(file, BadRows())), None)
    if first is None or is_published_schema(first):
        return {}
    spelled = {name.lower(): name for name in first.fields}
    found = {field: next((spelled[w] for w in words if w in spelled), "") for field, words in COLUMNS.items()}
    if lacking := [field for field, name in found.items() if not name]:
        raise DataError(
            f"{path}: which of its columns ({', '.join(first.fields)}) is the {' and the '.join(lacking)}? Name both: "
            "'task.columns={problem: ..., answer: ...}'"
        )
    return found


def propose_reward(answers: Iterable[str]) -> str:
    """`number`, the last number of a response, where every answer is one; else `math`, a line `Answer: ...`."""
    return "number" if all(re.fullmatch(r"[-+]?[\d,]*\.?\d+", answer) for answer in answers) else "math"


def propose_template(extraction: str, is_chat: bool) -> str:
    """The shipped template without worked examples that fits the reward's reading and the policy's tokenizer."""
    asking = next((form.template for form in FORMS if form.template and form.extraction == extraction), None)
    if asking is None:
        return "chat" if is_chat else "plain"
    return asking if is_chat else f"{asking}_base"


def probe(technique: str, study: Config, settings: Sequence[str], times: int) -> tuple[Probe, bool]:
    """Trains a few steps without the technique, in a process of its own; also says whether it could act there.

    times: those of the epochs of the run; the checks are made for the run's own only.

    Raises UserError: no group had both right and wrong answers, so neither arm of a study would learn from any.
    """
    from ablations.compare.advice import advice, findings

    tried = probed(study, settings, str(study.own_study.arm), times, REGISTER[technique].label)
    found = advice(technique, tried.rows, tried.algorithm, findings())
    like = [f"like {found.like[0]}"] if found.like else ["no study of this project resembles it"] * (times == 1)
    print(*(f"  {line}" for line in (found.amount, *like)), sep="\n", flush=True)
    return tried, bool(found.acts)


def probed(study: Config, settings: Sequence[str], arm: str, times: int, without: str = "") -> Probe:
    """Trains a few steps of an arm, after the checks of a training; both in processes of their own.

    without: the technique that the arm lacks, for the screen.

    Raises UserError: no group had both right and wrong answers, so no arm of a study would learn from any.
    """
    from ablations.compare.advice import updates_of
    from dapo_lit.cli.study_cost import used
    from dapo_lit.runs.run_folder import run_path
    from dapo_lit.train import INHERITED, check_study

    epochs = study.algorithm.epochs * times
    overrides = [
        *settings, f"study.arm='{arm}'", f"study_name={study.study_name}_probe/epochs_{epochs}", "study.until=null",
        f"budget.steps={PROBE_STEPS}", "algorithm.optimizer.warmup_steps=0", "evaluation.final_samples=null",
        f"algorithm.epochs={epochs}", "logger.rollouts_every=1",
        # the base policy that the study starts with
        *[f"seed={seed}" for seed in study.own_study.seeds[:1] if not any(s.startswith("seed=") for s in settings)],
    ]  # fmt: skip
    if study.task.eval_path or study.task.name != "file":
        overrides.append("task.num_heldout=1")
    config = compose(*overrides, *(["preflight=false"] if times > 1 else []))
    run = run_path(config, arm)
    for module in INHERITED:
        import_module(module)
    with keeping(lambda: f"the probe's steps so far are in {run}, and the same command continues"):
        # Two processes: vLLM leaves what a second engine in the same one stumbles over, such as a process group.
        for part in (lambda: check_study([config]), lambda: train_probe(config, overrides)):
            if code := in_child(partial(exit_code_of, part)):
                raise SystemExit(code)
    rows = read_metrics(run).rows
    algorithm = flatten(config.model_dump(mode="json")["algorithm"])
    what = f"without {without}" if without else f"of {arm}"
    print(f"probe     {PROBE_STEPS} steps of {updates_of(algorithm)} updates {what}")
    keys = ("accuracy", "groups_mixed_frac", "truncated_frac", "length_mean")
    right, mixed, truncated, length = (step_mean(rows, f"rollout/{key}") or 0.0 for key in keys)
    shares = f"{right:.1%} right, {mixed:.1%} of the groups mixed, {truncated:.1%} truncated, {length:.0f} tokens"
    print(f"  {shares}", flush=True)
    if not mixed:
        table = read_table(min((run / ROLLOUTS).glob("*.parquet")), ["response"])
        raise UserError(
            "no group had both right and wrong answers, so there is nothing to learn. Take problems nearer the "
            "policy's level, a prompt with a worked example (task.template=FILE.yaml), another --reward, or a longer "
            f"task.max_response_tokens. One response: {shorten(str(table['response'].iloc[0]), 160)!r}"
        )
    if mixed < FEW_MIXED:
        print("  warning: hardly any group has both right and wrong answers, and others do not teach what is right")
    return Probe(rows, algorithm, max(0.0, used([run]).seconds - rows[-1]["wall_s"]))


def train_probe(config: Config, overrides: list[str]) -> None:
    """A training whose checks were made: its steps on the screen, all else in a log."""
    from dapo_lit.train import train

    log = Path(config.runs_dir) / config.study_name / "probe.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"training {config.budget.steps} steps; the output is in {log}", flush=True)
    with log.open("a", encoding="utf-8") as opened, redirect_stdout(StepLines(opened, sys.stdout)):
        train(config.model_copy(update={"preflight": False}), overrides)


class StepLines(io.TextIOBase):
    """Writes everything into a log, and the lines of steps, with the time left, on the screen as well."""

    def __init__(self, log: TextIO, screen: TextIO) -> None:
        self.log, self.screen, self.line = log, screen, ""

    def write(self, text: str) -> int:
        self.log.write(text)
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            if line.startswith("step "):
                print(f"  {line}", file=self.screen, flush=True)
        return len(text)

    def flush(self) -> None:
        self.log.flush()


def run_costs(config: Config, tried: Probe, arms: Mapping[str, bool]) -> dict[str, "RunCost"]:
    """What a run of each arm takes; `arms` says which have dynamic sampling. config: of the arm that was probed."""
    from dapo_lit.cli.study_cost import run_cost

    return {arm: run_cost(config, tried.rows, tried.start_s, on) for arm, on in arms.items()}


def estimated(config: Config, tried: Probe, other: Config) -> dict[str, Any]:
    """Pairs, time and tokens of the study, and the effect that it can show if every completion were a coin.

    config: of the arm that was probed. other: of the one that it is compared with.
    """
    from ablations.compare.sequential import planned_looks
    from ablations.compare.statistics import smallest_effect

    study, steps, rows = config.own_study, config.budget.steps, tried.rows
    looks = planned_looks(study.max_pairs) if study.until else (len(study.seeds),)
    arms = {str(one.own_study.arm): one.algorithm.techniques.dynamic_sampling for one in (config, other)}
    runs = run_costs(config, tried, arms)
    seconds, tokens = (sum(getattr(run, key) for run in runs.values()) for key in ("seconds", "tokens"))
    noise, workers = sampling_noise(config, rows), workers_for(config, 2 * looks[0])
    costs = []
    for pairs in sorted({looks[0], looks[-1]}):
        least = smallest_effect(pairs)  # one pair shows nothing
        costs.append(
            {
                "pairs": pairs,
                "minutes": pairs * seconds / workers / 60,
                "tokens": round(pairs * tokens),
                "finds_points": None if least is None else noise * least,
            }
        )
    of_a_step = {"steps": steps, "seconds_a_step": rows[-1]["wall_s"] / rows[-1]["step"], "workers": workers}
    per_run = {arm: asdict(run) for arm, run in runs.items()}
    return {"metric": study.metric, "looks": list(looks), **of_a_step, "costs": costs, "runs": per_run}


def sampling_noise(config: Config, rows: Sequence[dict[str, Any]]) -> float:
    """Standard deviation, in points, of a difference of two runs if every completion were a coin."""
    algorithm, evaluation, steps = config.algorithm, config.evaluation, config.budget.steps
    points = max(1, min(3, steps // 3)) if steps <= 30 else steps // 10  # as ablations/read/outcomes.py averages
    completions = algorithm.num_prompts * algorithm.samples_per_prompt * points
    if config.task.eval_path:
        completions = config.task.num_heldout * (evaluation.final_samples or evaluation.samples)
    right = step_mean(rows, "rollout/accuracy") or 0.0
    return float(100 * (2 * right * (1 - right) / completions) ** 0.5)


def cost(estimate: Mapping[str, Any]) -> list[str]:
    """The estimate as lines."""
    from ablations.read.outcomes import in_words

    looks, steps = ", ".join(map(str, estimate["looks"])), estimate["steps"]
    length = f"{steps} step{'' if steps == 1 else 's'}"
    lines = [f"study     pairs of runs of {length}, with and without it; looks after {looks}"]
    for row in estimate["costs"]:
        text = f"{row['pairs']} pairs: about {row['minutes']:,.0f} minutes and {row['tokens']:,.0f} tokens; they find"
        least = float("inf") if row["finds_points"] is None else row["finds_points"]
        lines.append(f"  {text} {least:.1f} points of {in_words(estimate['metric'])} if sampling is the only noise")
    for arm, run in estimate["runs"].items():
        lines.append(
            f"  a run of {arm}: {run['tokens']:,.0f} tokens and {run['seconds']:,.0f} s, start and evaluations too"
        )
    return [*lines, f"  ({estimate['workers']} at a time; training adds noise of its own)"]


@on_screen()
def main(arguments: Sequence[str]) -> int:
    options, own = parse_arguments(arguments)
    typed = command("ablate", *arguments)
    study: list[Start] = []
    planned: list[dict[str, Any]] = []
    # With --json, standard output has the answer and nothing else.
    with redirect_stdout(sys.stderr) if options.json == "true" else nullcontext():
        if options.technique == ALL:
            code = exit_code_of(lambda: study.extend(ablate_all(options, own, planned)))
        elif options.technique not in REGISTER:
            code = exit_code_of(lambda: study.extend(ablate_part(options, own, planned)))
        else:
            code = exit_code_of(lambda: study.extend(ablate(options, own, typed, planned)))
    if code:
        return code
    if planned:
        print(json.dumps(planned[0], indent=1, allow_nan=False))
    if not study:
        return 0
    ((folder, typed_study),) = study
    print(command("train", *typed_study), flush=True)
    from dapo_lit import train
    from dapo_lit.cli.study_cost import promised_against_used

    sys.argv[1:] = typed_study
    code = run_command(train.train, Config, "config", run_study=train.run_study)
    if said := promised_against_used(folder):
        print(said, flush=True)
    return code


make_callable(__name__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
