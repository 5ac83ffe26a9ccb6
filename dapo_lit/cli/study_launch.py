"""The cells of a study: its arms and seeds written out as overrides, checked, with the plan that they carry out.

`+study=<name>` chooses conf/study/<name>.yaml, which lists the arms. `with_arm` turns the arm's name into config
values when a cell's config is composed.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from ablations.designs import Arm, Design, read_arm, read_arms
from ablations.errors import DamagedError, suggestion
from ablations.files.layout import DONE
from ablations.files.record import read_config
from ablations.screen import printable
from dapo_lit.cli.config_tree import composed_tree, config_of, with_literals
from dapo_lit.cli.fork import check_changes, fork_arms
from dapo_lit.cli.overrides import of_hydra, parsed_overrides
from dapo_lit.cli.workers import Cell
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import identity
from dapo_lit.config.shipped import SEARCHED, base_of, is_group, own_folders
from dapo_lit.runs.code_state import code_state, commit_file, uncommitted

if TYPE_CHECKING:
    from ablations.read.registration import Plan

ARM, SEED = "study.arm", "seed"


@dataclass(frozen=True)
class Sweep:
    """The cells of a study that one command runs."""

    config: Config
    """The config that the command composes before an arm is chosen."""
    plan: "Plan"
    """Registered before the first cell runs."""
    multirun: bool
    """False for one cell that was named."""
    cells: tuple[Cell, ...]
    """Seed by seed, so that all arms can be compared as soon as one seed is done."""
    arguments: tuple[str, ...]
    """The overrides without arms and seeds; the study is the last group, because its file refers to others."""
    kept: Mapping[str, Any]
    """Settings of the packed cells that the study extends."""
    tree: DictConfig
    """What `arguments` compose to, with what is kept."""

    @property
    def folder(self) -> Path:
        return Path(self.config.runs_dir) / self.config.study_name

    @property
    def batches(self) -> list[tuple[Cell, ...]]:
        """The cells up to each look; all at once where there is one look only."""
        from ablations.compare.sequential import planned_looks

        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        looks = planned_looks(len(seeds)) if self.config.own_study.until else (len(seeds),)
        parts = [seeds[start:end] for start, end in itertools.pairwise((0, *looks))]
        return [tuple(cell for cell in self.cells if cell.seed in part) for part in parts]

    def register(self) -> None:
        """Writes the plan into the study's folder, commits it if asked to, and prints what it decides."""
        from ablations.read.registration import FILE, register

        packed = self.config.own_study.packed
        digest = register(self.folder, self.plan, Path(packed) if packed else None, code_state())
        if place := self.config.own_study.registered_in:
            commit_file(
                self.folder / FILE, Path(place) / FILE, f"Register study {self.plan.study} before its first cell"
            )
        found = [f"{f.name} (comparisons: {len(f.contrasts)}, alpha: {f.alpha:g})" for f in self.plan.families]
        if found:
            print(f"registered {digest[:12]}, to decide {'; '.join(found)}", flush=True)

    def overrides(self, cell: Cell) -> list[str]:
        return [*self.arguments, f"seed={cell.seed}", f"{ARM}='{cell.arm}'"]

    def composed(self, cell: Cell) -> DictConfig:
        """The config of a cell, before its arm's values."""
        if self.config.fork:  # whose tree depends on the cell's seed in more than one place
            return with_literals(composed_tree(self.overrides(cell)), self.kept)
        # To compose takes a quarter of a second, and these two values are all that differs.
        return with_literals(self.tree, {SEED: cell.seed, ARM: cell.arm})


def prepare(arguments: Sequence[str]) -> tuple[list[str], Sweep]:
    """The command line of a study (`overrides.starts_study`), and its cells with their plan.

    A multirun gets every arm and, unless it names seeds, the seeds of the study's file.

    Raises ConfigError, StudyError: the study cannot be right; nothing has been written.
    """
    given = parsed_overrides(arguments)
    chosen = [override for override in given if override.key_or_group == "study"]
    own = own_folders(arguments)
    # Arms and seeds are the study's axes; the launcher sets them for each cell.
    others = [o for o in given if o not in chosen and o.key_or_group not in (ARM, SEED)]
    _check_overrides(others)
    last = [str(o.input_line) for o in chosen]
    plain = [str(o.input_line) for o in others if not of_hydra(o)]
    tree = composed_tree([*plain, *last])
    config, kept, packed = config_of(tree, Config), dict[str, Any](), None
    from ablations.read.registration import entries_in_force, with_plan
    from dapo_lit.cli.study_plan import check_power, make_plan, protocol  # load pandas and scipy

    if config.own_study.packed is not None:
        packed = Path(config.own_study.packed)
        if not packed.is_dir():
            raise ConfigError(f"study.packed={packed}: no such folder; status --pack writes it; null: none")
        keys = [o for o in others if o.key_or_group != SEARCHED and not is_group(o.key_or_group, own)]
        typed = {o.key_or_group: o.value() for o in keys}
        # New cells must be as the packed ones, whatever the shipped defaults have become since.
        kept = protocol(packed, [*plain, *last], typed)
        tree = with_literals(tree, kept)
        config = config_of(tree, Config)
    multirun = "-m" in arguments or "--multirun" in arguments
    study = study_design(config)
    arms, seeds = _cells(study, config, given, multirun)
    # Arms that differ in more than their switches answer another question than the one that is registered.
    check_arms(study, tree)
    if multirun:
        # Before the first run: too few pairs cannot decide anything whatever they turn out to be.
        check_power(study, config, seeds)
    if multirun and chosen:
        check_code(config)
    cells = tuple(Cell(arm.name, seed) for seed in seeds for arm in arms)
    plan = make_plan(study, config, seeds, multirun)
    sweep = Sweep(config, plan, multirun, cells, (*plain, *last), kept, tree)
    # Raises where this plan contradicts the registered one: registering anew would let a result choose the plan.
    with_plan(entries_in_force(sweep.folder, packed), plan, sweep.folder)
    if multirun and not config.fork:
        check_finished(sweep, study)
    print(_in_words(config, len(arms), seeds), flush=True)
    if kept:
        as_made = ", ".join(f"{key}={json.dumps(value)}" for key, value in kept.items())
        print(printable(f"as the packed cells were made: {as_made}"), flush=True)
    return list(arguments), sweep


def check_finished(sweep: Sweep, study: Design) -> None:
    """Refuses a study whose folder has finished cells of other seeds that no report would take together with these."""
    from ablations.read.guard import apart
    from ablations.read.runs import RUN_NAME

    for arm in dict.fromkeys(cell.arm for cell in sweep.cells):
        here = identity(config_of(with_values(sweep.tree, find_arm(study, arm)), Config).model_dump(mode="json"))
        for file in sorted((sweep.folder / arm).glob(f"seed_*/{DONE}")):
            name = file.parent.name
            # One that was moved aside is none of the study's, and what happens to one of this command its run says.
            if not RUN_NAME.fullmatch(name) or Cell(arm, int(name.removeprefix("seed_"))) in sweep.cells:
                continue
            try:
                there = identity(read_config(file.parent))
            except (DamagedError, OSError):  # a report names it
                continue
            if keys := apart(here, there):
                raise ConfigError(
                    f"{file.parent} differs from the cells of this command in {', '.join(keys)}, so that no report "
                    "could take them together; set it alike, or give these cells a study_name of their own"
                )


def check_code(config: Config) -> None:
    """Refuses a study of code or configs that no commit holds: nobody could make its cells again. A fork is a look at
    one run, and decides nothing unless it is asked to."""
    if config.fork or config.own_study.pilot or not (changed := uncommitted()):
        return
    others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    raise ConfigError(
        f"study {config.own_study.name}: uncommitted changes in {changed[0]}{others}, so that no commit would hold "
        "what its cells ran. Commit them; or add study.pilot=true, which registers a pilot: effects without verdicts"
    )


def _cells(study: Design, config: Config, given: Sequence[Override], multirun: bool) -> tuple[list[Arm], list[int]]:
    """The arms and seeds that the command line names, or the study's file."""
    arms = [find_arm(study, name) for name in _values(given, ARM)]
    seeds = [_seed(value) for value in _values(given, SEED)]
    if multirun:
        arms, seeds = arms or list(study.arms), seeds or list(config.own_study.seeds)
        if not seeds:
            raise ConfigError(f"study {study.name} has no seeds; name them: 'seed=range(0,12)'")
        if config.own_study.until:
            # A study that stops by its looks gets seeds in order, so that no seed is chosen after a look.
            seeds = list(range(min(seeds), min(seeds) + config.own_study.max_pairs))
    elif config.own_study.arm and not arms:
        arms = [find_arm(study, config.own_study.arm)]
    elif len(arms) != 1 or len(seeds) > 1:
        raise ConfigError(
            f"+study={study.name} without -m runs one cell: name its arm, study.arm={study.reference}, "
            "and one seed; with -m all of them run"
        )
    return arms, seeds or [config.seed]


def _in_words(config: Config, arms: int, seeds: Sequence[int]) -> str:
    algorithm, bases = config.algorithm, {base_of(config.own_study.bases, seed) for seed in seeds}
    updates = algorithm.num_prompts // algorithm.minibatch_prompts * algorithm.epochs
    on = f" on {len(bases)} base policies" if len(bases) > 1 and config.policy.path is None else ""
    steps = config.fork.horizon if config.fork else config.budget.steps
    return (
        f"study {config.own_study.name} on {config.task.label}: {arms} arms x {len(seeds)} seeds{on}, {steps} steps of "
        f"{updates} updates at lr {algorithm.optimizer.lr:g}, in {config.runs_dir}/{config.study_name}"
    )


def with_arm(tree: DictConfig) -> DictConfig:
    """The composed config of a cell of a study, with the values of its arm."""
    config = config_of(tree, Config)
    if config.own_study.arm is None:
        raise ConfigError(f"study.arm is needed: the arm of study {config.own_study.name} that this run is")
    return with_values(tree, find_arm(study_design(config), config.own_study.arm))


def with_values(tree: DictConfig, arm: Arm) -> DictConfig:
    return with_literals(tree, {**arm.values, ARM: arm.name})


def study_design(config: Config) -> Design:
    """The arms and the reference of the config's study; a calibration's are those of its regime."""
    from ablations.compare.calibration import CALIBRATE, calibration_arms

    study, regime = config.own_study, config.regime
    names, reference, place = list(study.arms or ()), study.reference, "study.arms"
    if study.name == CALIBRATE:
        if regime is None:
            raise ConfigError(f"+study={study.name} belongs to a regime; add +regime=NAME (conf/regime/)")
        doses = [dose for control in regime.techniques.values() for dose in control.doses]
        names, reference = calibration_arms(regime.reference, doses), regime.reference
        place = f"regime {regime.name}"
    if config.fork:
        names = fork_arms(config)
    if not names:
        raise ConfigError(f"study.arms: study {study.name} names none, such as [dapo, dapo-clip_higher]")
    # Arms of a fork have all else of their run.
    if config.algorithm.family != "dapo" and not config.fork:
        raise ConfigError(
            f"study {study.name} names its arms from DAPO's switches, and algorithm.family={config.algorithm.family} "
            "differs in more than those; leave `algorithm` at dapo, or compare algorithms by "
            "python -m dapo_lit.train -m algorithm=dapo,grpo,ppo 'seed=range(0,5)'"
        )
    try:
        arms = read_arms(names)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    if len(arms) < 2:
        raise ConfigError(f"study.arms: a study compares two arms or more, got {names}")
    if config.fork:
        check_changes(arms)
    made = Design(study.name, arms[0].name, arms)
    return replace(made, reference=find_arm(made, reference).name) if reference else made


def check_arms(study: Design, tree: DictConfig) -> None:
    """Composes every arm and refuses the study if two of them differ in keys that it does not declare."""
    from ablations.read.guard import composed_refusals

    # Composed, not read: defaults and interpolations decide what an arm is.
    configs = {arm.name: config_of(with_values(tree, arm), Config).model_dump(mode="json") for arm in study.arms}
    if reasons := composed_refusals(configs, study.declared):
        raise ConfigError("\n".join(f"study {study.name}: {reason}" for reason in reasons))


def find_arm(study: Design, name: str) -> Arm:
    """The arm of that name, in any order of its settings; the nearest one is named where the study has no such arm."""
    with suppress(ValueError):
        name = read_arm(name).name
    arm = next((arm for arm in study.arms if arm.name == name), None)
    if arm is None:
        raise ConfigError(f"study.arm: study {study.name} has no arm {name!r}; {suggestion(name, study.names)}")
    return arm


def _check_overrides(others: Sequence[Override]) -> None:
    """Refuses sweeps over anything but arms and seeds, and switches that are not set by the arms."""
    for override in others:
        key, text = override.key_or_group, override.input_line
        if key == "hydra/launcher":
            raise ConfigError(
                f"{text}: a study starts its cells itself. To use several machines, start the same command in a job on "
                "each (docs/tutorials/cluster.md); launchers of Hydra's take sweeps without a study"
            )
        if override.is_sweep_override():
            raise ConfigError(
                f"{text}: a study sweeps over study.arm and seed; runs of one arm that differ in {key} as well would "
                "share a folder. Run the study once for each value, each with a study_name of its own"
            )
        if key.startswith("algorithm.techniques."):
            raise ConfigError(f"{text}: the arms of a study set the switches; choose among them with study.arm=...")


def _values(given: Sequence[Override], key: str) -> list[str]:
    """The values of a key on the command line, one for each of a sweep."""
    found = [override for override in given if override.key_or_group == key]
    if not found:
        return []
    override = found[-1]
    if override.is_sweep_override():
        return [value.strip("'") for value in override.sweep_string_iterator()]
    return [str(override.value())]


def _seed(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"seed={value}: a seed is an integer; a range is written 'seed=range(0,12)'") from None
