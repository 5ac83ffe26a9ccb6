"""A study before its first run: its families of comparisons, enough pairs to decide them, its registered plan, and the
settings of packed cells, with which further pairs are made whatever the shipped settings are now.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ablations.compare.calibration import CALIBRATE, PLACEBO
from ablations.compare.contrasts import contrasts, pair, primary_family
from ablations.compare.sequential import planned_looks
from ablations.compare.statistics import pairs_needed
from ablations.designs import Design
from ablations.errors import DamagedError, suggestion
from ablations.files.layout import RECORD
from ablations.files.record import read_config, read_record
from ablations.read.guard import base_recipe, other_base
from ablations.read.outcomes import in_words
from ablations.read.packed_cells import read_cells, read_packed
from ablations.read.registration import FILE, Family, Plan, Registered, Stopping, entries_in_force
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.fork import fork_families
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.foreign import foreign_config
from dapo_lit.config.identity import differences, identity, put, schema_key
from dapo_lit.config.shipped import base_of
from dapo_lit.config.study import Control
from dapo_lit.imports import named_in
from dapo_lit.runs.resume import describe

SEEDED = ("seed", "task.base_seed")


def protocol(folder: Path, arguments: Sequence[str], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with which the study's cells are as those packed in `folder`, by key of the schema.

    arguments: what the study is composed from.
    typed: the keys of the command line with their values, which stay as they are.

    Raises ConfigError: the packed config is none of this version's, or names code that was not typed.
    """
    # One cell stands for all: the guard of a report refuses cells that differ in more than their arms.
    run = next(iter(read_packed(folder)), None)
    study = None if run is None else run.config.get("study")
    if run is None or not isinstance(study, Mapping):
        return {}
    # Checked like a file from a stranger: packed cells are copied between machines.
    packed = foreign_config(run.config, f"study.packed={folder}", named_in(typed)).model_dump(mode="json")
    before = identity(packed)
    here = resolved(composed_tree([*arguments, f"seed={run.seed}"]))
    keys = [text.partition("=")[0] for text in run.arm.split("@")[1:]]
    for key in before:  # the arm's own values are the study's, and no protocol
        if key.startswith("algorithm.techniques.") or any(key.endswith(f".{name}") for name in keys):
            put(here, key, before[key])
    kept = dict[str, Any]()
    for key in differences(before, identity(here)):
        place, value = _held(packed, schema_key(key))
        if place not in SEEDED and not any(place == own or place.startswith(f"{own}.") for own in typed):
            kept[place] = value
    return kept if "study.bases" in typed else kept | {"study.bases": _bases(run.config, folder)}


def _bases(config: Mapping[str, Any], folder: Path) -> list[int]:
    """The base policies that packed cells took in turn, which earlier versions had in the regime."""
    sections = [section for name in ("study", "regime") if isinstance(section := config.get(name), Mapping)]
    bases: Any = next((section["bases"] for section in sections if "bases" in section), [])
    if not isinstance(bases, list) or not all(type(base) is int for base in bases):
        raise ConfigError(f"study.packed={folder}: its cells have study.bases={bases!r}, which is not a list of seeds")
    return bases


def _held(tree: Mapping[str, Any], key: str) -> tuple[str, Any]:
    """The value at a key, or that of the nearest section above it that is null, with its key."""
    value: Any = tree
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(value, Mapping):
            return ".".join(parts[:depth]), value
        value = value[part]
    return key, value


OF_THE_REGIME = "outcomes of the regime"
"""The family of each technique's comparison on the outcome that the regime names for it."""
RULE = "two-sided sign-flip test over {units}, adjusted over its family by Holm"


def families(study: Design, config: Config) -> tuple[Family, ...]:
    """The families of comparisons that a study decides, with every contrast, its outcome and its share of alpha."""
    section = config.own_study
    if config.regime and study.name == CALIBRATE:
        return _calibrated(study, config)
    if config.fork:
        return fork_families(study, config)
    found = contrasts(study.names, study.reference)
    first = primary_family(found)
    try:
        found += [pair(family, text, study.names) for family, texts in (section.pairs or {}).items() for text in texts]
    except ValueError as error:
        raise ConfigError(f"study.pairs: {error}") from None
    asked = section.families or ({} if first is None else {first: section.alpha})
    controls = config.regime.techniques if config.regime else {}
    words = in_words(section.metric, config.evaluation.final_samples)
    made = []
    for name, alpha in asked.items():
        members = [
            Registered(c.label, c.technique, dict(c.weights), section.metric, words) for c in found if c.family == name
        ]
        if name == OF_THE_REGIME:
            members = [
                _on_its_outcome(c.label, c.technique, c.weights, controls[c.technique])
                for c in found
                if c.family == first and c.technique in controls
            ]
        if not members:
            hint = suggestion(name, [*dict.fromkeys(contrast.family for contrast in found), OF_THE_REGIME])
            raise ConfigError(f"study.families: study {study.name} has no comparisons {name!r}; {hint}")
        made.append(Family(name, alpha, tuple(members), None if name == OF_THE_REGIME else section.margin))
    return tuple(made)


def _calibrated(study: Design, config: Config) -> tuple[Family, ...]:
    """Placebo and extreme settings, on outcomes that the regime names and on accuracy where its studies claim it."""
    assert config.regime is not None
    metric, words = config.own_study.metric, in_words(config.own_study.metric, config.evaluation.final_samples)
    controls, placebo = config.regime.techniques, {study.reference + PLACEBO: 1.0, study.reference: -1.0}
    extremes = {name: {control.doses[-1]: 1.0, control.doses[0]: -1.0} for name, control in controls.items()}
    doses = [_on_its_outcome(name, name, extremes[name], control) for name, control in controls.items()]
    outcomes = dict.fromkeys((dose.outcome, dose.words, dose.steps) for dose in doses)
    nulls = [Registered("placebo", None, placebo, key, text, "either", steps) for key, text, steps in outcomes]
    if config.regime.accuracy:
        doses += [Registered(name, name, weights, metric, words) for name, weights in extremes.items()]
        nulls.append(Registered("placebo", None, placebo, metric, words))
    # A calibration makes two claims, that controls act and that the placebo does not; each has half.
    half = config.own_study.alpha / 2
    return Family("controls", half, tuple(doses)), Family("placebo", half, tuple(nulls))


def _on_its_outcome(label: str, technique: str | None, weights: Mapping[str, float], control: Control) -> Registered:
    """A comparison on the outcome, direction and steps that the regime names for its technique."""
    key = control.outcome
    return Registered(label, technique, dict(weights), key, in_words(key), control.direction, control.steps)


def check_power(study: Design, config: Config, seeds: Sequence[int]) -> None:
    """Refuses a study whose test cannot reach alpha, whatever its runs turn out to be."""
    section = config.own_study
    # Further pairs of one are never too few.
    if section.underpowered or section.pilot or _registered_plan(config):
        return
    every = set(seeds)
    # Base policies and not seeds: seeds of one base are not independent of each other.
    units = _units(config, every)
    for family in families(study, config):
        comparisons, alpha = len(family.contrasts), family.alpha
        if units < (needed := pairs_needed(comparisons, alpha)):
            raise ConfigError(
                f"study {study.name}: {units} base polic{'y' if units == 1 else 'ies'} cannot decide anything: the "
                f"smallest exact p is {2.0 ** (1 - units):.2g}, and {comparisons} "
                f"comparison{'' if comparisons == 1 else 's'} at alpha {alpha:g} "
                f"need{'s' if comparisons == 1 else ''} {alpha / comparisons:.2g}. Take 'seed=range(0,{needed})' or "
                "more with study.bases=[], or study.underpowered=true to run it nonetheless"
            )


def _units(config: Config, seeds: Collection[int]) -> int:
    """Base policies of these seeds; of one base policy, its runs."""
    bases = {base_of(config.own_study.bases, seed) for seed in seeds}
    return len(set(seeds)) if config.policy.path is not None or len(config.own_study.bases) == 1 else len(bases)


def _stopping(config: Config, before: Plan | None, seeds: Collection[int]) -> Stopping | None:
    """The stopping rule. Further seeds keep the rule of a registered study: they count at a registered look only."""
    if config.own_study.until:
        return {"until": config.own_study.until, "looks": planned_looks(config.own_study.max_pairs)}
    return before.stopping if before else {"pairs": _units(config, seeds)}


def make_plan(study: Design, config: Config, seeds: Sequence[int], multirun: bool) -> Plan:
    """The plan of the runs that are about to start.

    One cell by itself, where nothing is registered, registers the seeds of the study's file too.

    Raises ConfigError: a seed would count before those that are registered.
    """
    section = config.own_study
    folder = Path(config.runs_dir) / config.study_name
    before = _registered_plan(config)
    if before and (late := sorted(s for s in {*seeds} - {*before.seeds} if s < max(before.seeds, default=s))):
        raise ConfigError(
            f"seed={late[0]}: {folder / FILE} registers seeds up to {max(before.seeds)}, and pairs count in the "
            f"order of their seeds; further seeds start at {max(before.seeds) + 1}"
        )
    registered = {*seeds, *(() if before or multirun else section.seeds)}
    one = config.policy.path is not None or len(section.bases) == 1
    return Plan(
        study=study.name,
        metric=section.metric,
        reference=study.reference,
        arms=study.names,
        seeds=tuple(sorted(registered)),
        bases=section.bases if config.policy.path is None else (),
        families=() if section.pilot else families(study, config),
        rule=RULE.format(units="runs of one base policy" if one else "base policies"),
        stopping=_stopping(config, before, registered),
        # As plans of earlier versions have it.
        budget=config.budget.model_dump() | {"wall_s": None},
        budgets=section.budgets,
        pilot=section.pilot,
        alpha=section.alpha,
        declared=tuple(sorted(study.declared)),
    )


def _registered_plan(config: Config) -> Plan | None:
    """The plan that counts: that of the study's folder if it has runs, or that of the packed cells that it extends."""
    packed = config.own_study.packed if config.study else None
    entries = entries_in_force(Path(config.runs_dir) / config.study_name, Path(packed) if packed else None)
    return Plan.read(entries[-1]["plan"]) if entries else None


def check_base(config: Config, arm: str, start: Mapping[str, Any]) -> None:
    """Refuses a cell of a study that would start from other weights than other arms of its seed did, packed or not.

    start: what run.json will say of its base policy.
    Raises ConfigError: the report would refuse the study after all the work.
    """
    if config.study is None or config.fork is not None or start["base_weights"] is None:
        return
    recipe = base_recipe(identity(config.model_dump(mode="json")))
    for cell, (record, tree) in _cells_of_seed(config, arm).items():
        if record.get("base_weights") in (None, start["base_weights"]) or "origin" in record:
            continue
        if base_recipe(identity(tree)) == recipe:
            raise ConfigError(f"{cell} and this cell: {other_base(record, start)}")


def _cells_of_seed(config: Config, arm: str) -> dict[Path, tuple[dict[str, Any], dict[str, Any]]]:
    """run.json and config of the other arms of a cell's seed."""
    section, seed, found = config.own_study, config.replicate, {}
    for file in sorted((Path(config.runs_dir) / config.study_name).glob(f"*/seed_{seed}/{RECORD}")):
        if file.parent.parent.name != arm:
            # A damaged neighbour is no reason to refuse this cell.
            with suppress(DamagedError):  # the report names it
                found[file.parent] = read_record(file.parent), read_config(file.parent)
    if section.packed:
        folder = Path(section.packed)
        for cell in read_cells(folder, seed=seed):
            found[folder / cell.arm / f"seed_{seed}"] = cell.record, cell.config
    return found


def packed_cell(config: Config, arm: str) -> Path | None:
    """The packed cell under study.packed that makes this run unnecessary: the same experiment, finished."""
    if config.study is None or config.own_study.packed is None or config.resume != "auto":
        return None
    folder = Path(config.own_study.packed)
    cell = folder / arm / f"seed_{config.replicate}"
    packed = read_cells(folder, arm, config.replicate)
    if not packed:
        return None
    known = foreign_config(packed[0].config, cell, given=None)  # only compared
    changes = differences(identity(known.model_dump(mode="json")), identity(config.model_dump(mode="json")))
    if changes:
        print(f"{cell} is packed with another config ({describe(changes)}); training it again")
        return None
    return cell
