"""The ledger of a study's runs, or of the logs of another trainer: every arm is a change to the reference arm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ablations.errors import suggestion
from ablations.read.foreign import runs_of_logs
from ablations.read.ledger import RUNS_A_PAIR, Change, Ledger, Pair, two_units
from ablations.read.outcomes import bases, primary_metric, scores
from ablations.read.registration import Plan, read_plan
from ablations.read.run import Run, StudyError
from ablations.read.runs import Runs, load, study_folder


def ledger_of_study(folders: Sequence[Path], metric: str | None = None, reference: str | None = None) -> Ledger:
    """The ledger of a study, live or packed.

    reference: the arm that the others are changes to; None: the registered one, else the first.

    Raises StudyError: nothing can be read, or there is no such arm.
    """
    runs = load(*folders)
    plan, _ = read_plan(study_folder(folders[0]))
    key = primary_metric(runs, metric or (plan.metric if plan else None))
    control = reference or (plan.reference if plan else None)
    found = _ledger(runs, key, control, ", ".join(map(str, folders)), "study", None if plan and plan.pilot else plan)
    return Ledger(**{**vars(found), **_promises(plan, found), "notes": (*found.notes, *runs.warnings)})


def ledger_of_logs(
    system: str,
    folders: Sequence[Path],
    metric: str | None = None,
    reference: str | None = None,
    named: Path | None = None,
) -> Ledger:
    """The ledger of another trainer's logs. named: a table of run, arm and seed.

    Raises StudyError as `ledger_of_study`.
    """
    listed, key, notes, left_out = runs_of_logs(system, folders, metric, named)
    found = _ledger(Runs(tuple(listed)), key, reference, ", ".join(map(str, folders)), system)
    for change in found.changes:
        values = [*change.treated, *change.control, *(v for pair in change.pairs for v in (pair.treated, pair.control))]
        if fault := two_units(values):
            raise StudyError(f"{found.source}: {key} of {change.name} and {found.reference} {fault}")
    compared = ", ".join(change.name for change in found.changes)
    notes = [f"Compared in {key}, on the last steps of each run: {compared} with {found.reference}.", *notes]
    return Ledger(**{**vars(found), "notes": (*notes, *(f"Left out: {reason}" for reason in left_out))})


def _promises(plan: Plan | None, found: Ledger) -> Mapping[str, object]:
    """What a study registered of its looks and its error, and whether these comparisons are among its families'."""
    if plan is None or plan.pilot:
        return {}
    # One look is at all registered seeds: at as many base policies as they turned out to have.
    registered = [len(change.registered or ()) for change in found.changes]
    looks = plan.looks or (max(registered, default=0) or len(plan.seeds),)
    for family in plan.families:
        held = [one.weights for one in family.contrasts if one.outcome == found.metric and one.steps is None]
        if all(any(_compares(weights, change.name, found.reference) for weights in held) for change in found.changes):
            # The family's share of alpha, and all of its comparisons, also those of arms that have not started.
            absent = len(family.contrasts) - len(found.changes)
            return {"looks": looks, "alpha": family.alpha, "registered": True, "absent": absent}
    return {"looks": looks, "alpha": plan.alpha}


def _compares(weights: Mapping[str, float], arm: str, reference: str | None) -> bool:
    """The difference of these two, in whichever direction: a technique may be what the reference has."""
    return weights in ({arm: 1.0, reference: -1.0}, {arm: -1.0, reference: 1.0})


def _ledger(runs: Runs, key: str, reference: str | None, source: str, kind: str, plan: Plan | None = None) -> Ledger:
    table = scores(runs, key)
    control = reference or next(iter(runs.arms))
    if control not in table:
        raise StudyError(f"{source}: there is no arm {control!r}; {suggestion(control, table)}")
    if len(table) == 1:
        raise StudyError(f"{source}: has only the arm {control}, so there is no change to decide on")
    minutes = _minutes(runs)
    base_of = bases(runs)
    changes = [
        _change(arm, table[arm], table[control], base_of, minutes, control, plan) for arm in table if arm != control
    ]
    return Ledger(source, kind, tuple(changes), key, control, "minutes" if minutes else "runs")


def _minutes(runs: Runs) -> dict[tuple[str, int], float]:
    """How long each run took; empty unless all say so."""
    found = {(run.arm, run.seed): last for run in runs if (last := _last(run)) is not None}
    return found if len(found) == len(runs) else {}


def _last(run: Run) -> float | None:
    wall = run.series("wall_s")
    return float(wall.iloc[-1]) / 60 if len(wall) else None


def _change(
    arm: str,
    treated: Mapping[int, float],
    control: Mapping[int, float],
    base_of: Mapping[int, str],
    minutes: Mapping[tuple[str, int], float],
    reference: str,
    plan: Plan | None,
) -> Change:
    seeds = sorted({*treated} & {*control})
    if not seeds:  # other seeds on each side
        runs = [(arm, seed) for seed in treated] + [(reference, seed) for seed in control]
        costs = [minutes.get(run, RUNS_A_PAIR / 2) for run in runs]
        return Change(arm, treated=list(treated.values()), control=list(control.values()), costs=costs)
    groups = _units(seeds, base_of)
    pairs = _pairs(groups, treated, control)
    costs = [
        sum(minutes[arm, s] + minutes[reference, s] for s in group) if minutes else RUNS_A_PAIR * len(group)
        for group in groups.values()
    ]
    registered = None
    if plan:
        registered = [
            pair.treated - pair.control for pair in _pairs(_units(plan.counted(seeds), base_of), treated, control)
        ]
    by_base = any(len(group) > 1 for group in groups.values())
    incomplete = dict.fromkeys(base_of[s] if by_base else str(s) for s in sorted({*treated} ^ {*control}))
    return Change(arm, pairs, costs=costs, incomplete=[*incomplete], registered=registered)


def _units(seeds: Sequence[int], base_of: Mapping[int, str]) -> Mapping[str, Sequence[int]]:
    """The seeds of each unit, a base policy: seeds that share one are averaged, unless all do."""
    units = dict.fromkeys(base_of[seed] for seed in seeds)
    if 1 < len(units) < len(seeds):
        return {base: [seed for seed in seeds if base_of[seed] == base] for base in units}
    return {str(seed): [seed] for seed in seeds}


def _pairs(
    units: Mapping[str, Sequence[int]], treated: Mapping[int, float], control: Mapping[int, float]
) -> list[Pair]:
    return [
        Pair(name, sum(treated[s] for s in seeds) / len(seeds), sum(control[s] for s in seeds) / len(seeds))
        for name, seeds in units.items()
    ]
