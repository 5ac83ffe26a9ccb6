"""Runs that another trainer made, from its logs: TRL, verl, OpenRLHF, prime-rl, or tables of your own.

A log is rows of numbers (`logs.py`). key_maps/<system>.yaml says what their keys are called here; keys without a name
here stay as they are. Arm and seed are in the path or in the name of the run: `ARM/seed_3/...` or `ARM_seed_3`.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ablations.border import LARGEST, NUMBER, WHOLE, FolderName, Seed, checked, checked_table
from ablations.errors import one_line
from ablations.read.logs import Log, guessed, logs_below
from ablations.read.outcomes import outcome, with_interval
from ablations.read.packed_cells import write_packed
from ablations.read.run import AXES, Run, StudyError
from ablations.read.separated import lines_of
from ablations.texts import read_text, yaml_tree

MAPS = Path(__file__).with_name("key_maps")
NAMED = re.compile(r"(?P<arm>.*?)[-_. ]?seed[-_=]?(?P<seed>\d+)$")
AVERAGED = re.compile(r"(__MIN|__MAX| - std| \(smoothed\))$", re.IGNORECASE)
"""Columns that W&B and TensorBoard export beside means over runs and smoothed curves."""
LEAST_PAIRS = 6
"""The sign-flip test of fewer has no p below 0.05."""
FREE = re.compile(r"seed|name|path|dir|folder|time|host|port|wandb|_id$|run", re.IGNORECASE)
"""Settings in which runs of one arm may differ."""


def import_runs(
    system: str, folders: Sequence[Path], out: Path, metric: str | None, named: Path | None = None
) -> tuple[str, list[str], list[str]]:
    """Reads the logs below `folders` and packs them as the study in `out`.

    Returns the key of the primary metric, sentences that a reader has to know, and one for each log that is left out.

    metric: the primary metric, under their key or ours; None: rollout/accuracy, else rollout/reward.
    named: a table that says which run is of which arm and seed (`read_names`).

    Raises StudyError: no log can be read, two are of one run, or runs of one arm have other settings.
    """
    runs, primary, notes, left_out = runs_of_logs(system, folders, metric, named)
    write_packed(runs, out)
    return primary, notes + _unpaired(runs, primary), left_out


def runs_of_logs(
    system: str, folders: Sequence[Path], metric: str | None, named: Path | None = None
) -> tuple[list[Run], str, list[str], list[str]]:
    """The runs of the logs below `folders`, and what `import_runs` returns of them without a comparison of arms."""
    keys = _keys(system)
    names = read_names(named) if named else {}
    unused = {*names}
    runs: dict[tuple[str, int], tuple[Run, Log]] = {}
    left_out: list[str] = []
    unseeded: list[str] = []
    for folder in folders:
        logs, unread = logs_below(folder)
        left_out += unread
        if places := {} if named else _places(logs, folder):
            arms = ", ".join(sorted({arm for arm, _ in places.values()}))
            unseeded = [
                f"No run has a seed, so the {len(places)} are numbered, and no two are paired. By their folders the "
                f"arms are {arms}; to change that, give a table with the columns run,arm,seed: --runs FILE.csv."
            ]
        by_folder = {} if named else _folders(logs, folder)
        for log in logs:
            try:
                if own := next((name for name in _called(log, folder) if name in names), None):
                    unused.discard(own)
                    log = replace(log, rows=log.rows.drop(columns=["arm", "seed"], errors="ignore"), given=True)
                    cells = [_run(system, log, (*names[own], log.rows), keys)]
                else:
                    cells, unread = _runs(system, log, [*_cells(log, folder, {**places, **by_folder})], keys)
                    left_out += unread
            except StudyError as reason:
                left_out.append(str(reason))
                continue
            for run in cells:
                first = runs.setdefault((run.arm, run.seed), (run, log))[1]
                if first is not log:
                    raise StudyError(f"{first.file} and {log.file} are both {run.name}; name one of them")
    if not runs:
        none = f"{', '.join(map(str, folders))}: no logs here; expected {', '.join(Log.KINDS)}"
        raise StudyError(one_line(left_out) or none)
    if unused:
        raise StudyError(f"{named}: no log is called {', '.join(sorted(unused)[:3])}; it is a file, a folder or a run")
    notes = [
        *unseeded,
        *_guesses({cell: log for cell, (_, log) in runs.items()}),
        *_alone([*runs]),
        *_settings({cell: log.settings for cell, (_, log) in runs.items()}),
        *_gaps([run for run, _ in runs.values()]),
    ]
    found = sorted({str(key) for run, _ in runs.values() for key in run.metrics.columns})
    wanted = [_ours(metric, keys)] if metric else ["rollout/accuracy", "rollout/reward"]
    measured = [key for key in found if key not in (*AXES, "gradient_step")]
    # A chart has one metric, and so has many a table.
    wanted += measured if not metric and len(measured) == 1 else []
    primary = next((key for key in wanted if key in found), None)
    if primary is None:
        raise StudyError(
            f"no log has {' or '.join(wanted)}; name the primary metric with --metric, one of {', '.join(found)}"
        )
    spoilt = [run.name for run, _ in runs.values() if run.has_nonfinite(primary)]
    if len(spoilt) == len(runs):
        raise StudyError(f"{primary} is NaN or infinite at some step of every run; name another metric with --metric")
    if spoilt:
        notes.append(f"{primary} is NaN or infinite at some step of {', '.join(spoilt)}, left out of it.")
    return [run for run, _ in runs.values()], primary, notes, left_out


def read_names(file: Path) -> dict[str, tuple[str, int]]:
    """Arm and seed of runs by their names: a table with the columns run, arm and seed, where a run is called by its
    file or folder (below the folder of logs), or by the name that its log has.

    Raises StudyError in one line.
    """
    try:
        lines = [*lines_of(read_text(file, error=StudyError, encoding="utf-8-sig"))]
    except OSError as error:
        raise StudyError(f"{file}: cannot be read ({error.strerror or error})") from None
    except csv.Error as error:
        raise StudyError(f"{file}: is no table ({error})") from None
    header = [name.strip() for name in lines[0][1]] if lines else []
    if lacking := [name for name in ("run", "arm", "seed") if header.count(name) != 1]:
        raise StudyError(f"{file}: needs the columns run, arm and seed, once each; see {', '.join(lacking)}")
    names: dict[str, tuple[str, int]] = {}
    for number, cells in lines[1:]:
        place = f"{file}, line {number}"
        if len(cells) != len(header):
            raise StudyError(f"{place}: has {len(cells)} values for {len(header)} columns")
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        if not re.fullmatch(r"\d{1,15}", row["seed"]) or not row["run"]:
            raise StudyError(f"{place}: needs a run and a seed that is a whole number")
        if row["run"] in names:
            raise StudyError(f"{place}: {row['run']} is named twice")
        names[row["run"]] = (row["arm"], int(row["seed"]))
    return names


def _called(log: Log, folder: Path) -> Iterator[str]:
    """What a run may be called, the surest first: its name, its file, and the folders that it is in."""
    if log.name:
        yield log.name
    inner = log.file.relative_to(folder) if log.file != folder else Path(log.file.name)
    yield from (path.as_posix() for path in (inner, inner.with_suffix(""), *inner.parents) if path.name)
    yield log.file.name
    yield log.file.stem


def read_run(system: str, path: Path) -> pd.DataFrame:
    """A row a rollout step of the one run in a log, under our names, by step. Raises StudyError as `import_runs`."""
    logs, unread = logs_below(path)
    if len(logs) != 1:
        raise StudyError(one_line(unread) or f"{path}: {len(logs)} logs below it; name one of them")
    return _metrics(logs[0].rows.drop(columns=["arm", "seed"], errors="ignore"), _keys(system), logs[0].file)[0]


def _run(system: str, log: Log, cell: tuple[str, int, pd.DataFrame], keys: Mapping[str, Any]) -> Run:
    arm, seed, rows = cell
    table, not_finite = _metrics(rows, keys, log.file)
    record = {"study": system, "status": "finished", "base": "the policy that they trained"}
    return Run(
        log.file.parent,
        system,
        checked(arm, FolderName, f"{log.file}, its arm", StudyError),
        checked(seed, Seed, f"{log.file}, its seed", StudyError),
        "finished",
        record,
        {},
        table,
        not_finite=not_finite,
    )


def _runs(
    system: str, log: Log, cells: Sequence[tuple[str, int, pd.DataFrame]], keys: Mapping[str, Any]
) -> tuple[list[Run], list[str]]:
    """The runs of a log, and a sentence for each that cannot be read.

    Raises StudyError: half of them cannot be; or one of a table of results, whose columns do not tell its arms apart.
    """
    runs: list[Run] = []
    unread: list[StudyError] = []
    for cell in cells:
        try:
            runs.append(_run(system, log, cell, keys))
        except StudyError as reason:
            unread.append(reason if len(cells) == 1 else StudyError(f"{cell[0]}/seed_{cell[1]}: {reason}"))
    if unread and (len(unread) >= len(runs) or (log.rows["step"] == 1).all()):
        raise unread[0]
    return runs, [*map(str, unread)]


def _keys(system: str) -> Any:
    return yaml_tree(read_text(file := MAPS / f"{system}.yaml"), file)


Places = Mapping[Path, tuple[str, int]]
"""Of the logs whose arm only their folders tell, and who have no seed: the arm, and a number that no other run has."""


def _places(logs: Sequence[Log], folder: Path) -> Places:
    """Arms of several runs each, by the folders in which the paths differ, for logs without seeds.

    Two runs of one number would be a pair: no two have it. Empty where one of the logs says whose it is, or where a
    folder has one run, which may be a seed of the arm as well as the arm.
    """
    bare = [log for log in logs if "seed" not in log.rows and not _named_cell(log, folder)]
    if len(bare) < len(logs) or len({log.file for log in logs}) < len(logs):
        return {}
    homes = [log.file.parent.relative_to(folder).parts if log.file != folder else () for log in logs]
    apart = [at for at in range(max(map(len, homes), default=0)) if len({home[at : at + 1] for home in homes}) > 1]
    arms = ["-".join(part for at in apart for part in home[at : at + 1]) for home in homes]
    if len({*arms}) < 2 or "" in arms or min(arms.count(arm) for arm in arms) < 2:
        return {}
    return {log.file: (arm, number) for number, (log, arm) in enumerate(zip(logs, arms, strict=True))}


def _folders(logs: Sequence[Log], folder: Path) -> Places:
    """Arm and seed of logs whose names have the seed and all the same arm: `ARM/train_seed42.log`. Empty for others."""
    cells = {log.file: _in_name(log.file.stem) for log in logs if not {"arm", "seed"} & {*log.rows} and not log.name}
    known = {file: cell for file, cell in cells.items() if cell}
    if len(known) < len(logs) or len({arm for arm, _ in known.values()}) != 1:
        return {}
    homes = {file: file.parent.relative_to(folder).parts if file != folder else () for file in known}
    apart = [
        at for at in range(max(map(len, homes.values()))) if len({home[at : at + 1] for home in homes.values()}) > 1
    ]
    arms = {file: "-".join(part for at in apart for part in home[at : at + 1]) for file, home in homes.items()}
    return {file: (arm, known[file][1]) for file, arm in arms.items()} if all(arms.values()) else {}


def _in_name(name: str) -> tuple[str, int] | None:
    """Arm and seed in the name of a file."""
    match = NAMED.fullmatch(name)
    return (match["arm"], int(match["seed"])) if match and match["arm"] else guessed(name)


def _arm_of_seeds(log: Log, folder: Path, others: Iterator[Path]) -> str:
    """The arm of a table with a column of seeds and none of arms: what its path has that those of the others have not.

    Raises StudyError: it is the only one.
    """
    own = log.file.relative_to(folder).with_suffix("").parts if log.file != folder else (log.file.stem,)
    rest = [other.relative_to(folder).with_suffix("").parts for other in others if other != log.file]
    arm = "-".join(part for at, part in enumerate(own) if any(other[at : at + 1] != (part,) for other in rest))
    if not arm:
        raise StudyError(f"{log.file}: has seeds and no column of arms; give the folder with the files of all arms")
    return arm


def _cells(log: Log, folder: Path, places: Places) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Arm, seed and rows of each run in a log, by its columns, the name of the run or its path, innermost first."""
    if {"arm", "seed"} <= set(log.rows.columns):
        for (arm, seed), rows in log.rows.groupby(["arm", "seed"], sort=False):
            yield str(arm), int(str(seed)), rows.drop(columns=["arm", "seed"])
        return
    if "seed" in log.rows:
        if cell := _named_cell(log, folder):
            yield cell[0], cell[1], log.rows.drop(columns=["seed"])
            return
        arm = _arm_of_seeds(log, folder, folder.rglob(f"*{log.file.suffix}") if folder.is_dir() else iter(()))
        for seed, rows in log.rows.groupby("seed", sort=False):
            yield arm, int(str(seed)), rows.drop(columns=["seed"])
        return
    if log.file in places:
        yield *places[log.file], log.rows
        return
    if cell := _named_cell(log, folder):
        yield *cell, log.rows
        return
    raise StudyError(
        f"{log.name or log.file}: which arm and seed is it? Name its folder ARM/seed_3, the run ARM_seed_3, or give a "
        "table with the columns run,arm,seed as --runs FILE.csv"
    )


def _named_cell(log: Log, folder: Path) -> tuple[str, int] | None:
    """Arm and seed in the name of a run or in its path, innermost first."""
    if log.name and (cell := guessed(log.name)):
        return cell
    inner = log.file.relative_to(folder.parent).with_suffix("").parts if log.file != folder else (log.file.stem,)
    for at, part in reversed(list(enumerate([*inner, *([log.name] if log.name else [])]))):
        if match := NAMED.fullmatch(part):
            arm = match["arm"] or (inner[at - 1] if 0 < at <= len(inner) else "")
            if arm:
                return arm, int(match["seed"])
    return next((cell for part in reversed(inner) if (cell := guessed(part))), None)


def _ours(key: str, keys: Mapping[str, Any]) -> str:
    """Our name of their key."""
    named = {theirs: ours for ours, theirs in keys["metrics"].items()}
    for pattern, ours in keys["patterns"].items():
        if match := re.fullmatch(pattern, key):
            return match.expand(ours)
    return named.get(key, key)


def _metrics(rows: pd.DataFrame, keys: Mapping[str, Any], file: Path) -> tuple[pd.DataFrame, frozenset[str]]:
    """A row a rollout step, under our names, and the metrics that are not finite in some of them."""
    if smoothed := [str(key) for key in rows.columns if AVERAGED.search(str(key))]:
        raise StudyError(
            f"{file}: {smoothed[0]} belongs to a smoothed curve or a mean over runs; export each run, as logged"
        )
    rows = rows.sort_values("step")
    if keys["rollout"] not in rows:
        raise StudyError(f"{file}: has no {keys['rollout']}, which every rollout step logs; is --from right?")
    steps = rows["step"][rows[keys["rollout"]].notna()]
    if len(twice := steps[steps.duplicated()]):
        raise StudyError(f"{file}: has step {twice.iloc[0]:g} twice; a log holds one run, from its start to its end")
    rows = rows.groupby("step", as_index=False).first()  # prime-rl's trainer and orchestrator write rows of their own
    sums = {ours: rows[theirs].fillna(0).cumsum() for ours, theirs in keys["sums"].items() if theirs in rows}
    table = rows.rename(columns=lambda key: _ours(str(key), keys)).assign(**sums)
    if len(same := table.columns[table.columns.duplicated()]):
        raise StudyError(f"{file}: several of its columns are {same[0]} here; a log holds one policy on one batch")
    for ours, theirs in keys["so_far"].items():
        if theirs in rows:
            table[ours] = rows[theirs]
    for ours, theirs in keys["one_minus"].items():
        if theirs in rows:
            table[ours] = 1 - rows[theirs]
    table = table[rows[keys["rollout"]].notna()].rename(columns={"step": "gradient_step"})
    if rows["step"].diff().max() > 1 or keys["rollout"] == "step":
        table["step"] = table["gradient_step"]  # a row may stand for several steps, which cannot be counted or summed
        table = table.drop(columns=list(sums) if keys["rollout"] != "step" else [])
    else:
        table["step"] = range(1, len(table) + 1)
    table = table.assign(**{axis: float("nan") for axis in AXES if axis not in table})
    infinite = table.abs() > LARGEST
    not_finite = frozenset(str(key) for key in table.columns[infinite.any()])
    table = checked_table(table.mask(infinite), {"step": WHOLE}, file, StudyError, others=NUMBER, key=("step",))
    return table.set_index("step"), not_finite


def _settings(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """The settings in which arms differ. Raises StudyError where runs of one arm do."""
    first: dict[str, tuple[tuple[str, int], Mapping[str, Any]]] = {}
    for cell, settings in found.items():
        twin, own = first.setdefault(cell[0], (cell, settings))
        differing = [k for k in {*own, *settings} if own.get(k) != settings.get(k) and not FREE.search(k)]
        if own and settings and differing:
            raise StudyError(
                f"{twin[0]}/seed_{twin[1]} and {cell[0]}/seed_{cell[1]} differ in {', '.join(sorted(differing))}; "
                "an arm has one configuration: name one of them as another arm"
            )
    if not all(settings for _, settings in first.values()):
        return ["These logs hold no settings, so nothing was compared but the numbers."]
    keys = sorted({key for _, settings in first.values() for key in settings if not FREE.search(key)})
    differing = [key for key in keys if len({repr(settings.get(key)) for _, settings in first.values()}) > 1]
    return [f"The arms differ in {', '.join(differing)}." if differing else "The arms have the same settings."]


def _guesses(found: Mapping[tuple[str, int], Log]) -> list[str]:
    """Which run was taken for which arm and seed, where neither its folder nor its columns say it as documented."""
    notes = [f"{file}: {words}." for file, words in {(log.file, log.guess) for log in found.values() if log.guess}]
    names = {
        cell: log.name or log.file.stem
        for cell, log in found.items()
        if not {"arm", "seed"} & {*log.rows} and not log.given
    }
    unsure = [f"{name} is {arm}/seed_{seed}" for (arm, seed), name in names.items() if guessed(name)]
    if unsure:
        more = f" and {len(unsure) - MOST_NAMED} more" if len(unsure) > MOST_NAMED else ""
        notes.append(
            f"By their names: {', '.join(unsure[:MOST_NAMED])}{more}. To change that, give a table with the columns "
            "run,arm,seed: --runs FILE.csv."
        )
    return notes


MOST_NAMED = 12


def _alone(cells: Sequence[tuple[str, int]]) -> list[str]:
    """Runs that are in no pair, as no other arm has their seed, where other runs are paired."""
    arms_of: dict[int, set[str]] = {}
    for arm, seed in cells:
        arms_of.setdefault(seed, set()).add(arm)
    alone = [f"{arm}/seed_{seed}" for arm, seed in cells if len(arms_of[seed]) == 1]
    if not alone or len(alone) == len(cells):
        return []
    more = f" and {len(alone) - MOST_NAMED} more" if len(alone) > MOST_NAMED else ""
    return [f"In no pair, as no other arm has the seed: {', '.join(alone[:MOST_NAMED])}{more}."]


def _gaps(runs: Sequence[Run]) -> list[str]:
    """Too few runs, runs of unequal lengths, and steps that were not logged."""
    notes = []
    fewest = min(sum(run.arm == arm for run in runs) for arm in {run.arm for run in runs})
    if fewest < LEAST_PAIRS:
        notes.append(f"An arm has {fewest} runs: fewer than {LEAST_PAIRS} pairs cannot decide anything.")
    lengths = sorted({len(run.metrics) for run in runs})
    if len(lengths) > 1:
        notes.append(
            f"The runs have {lengths[0]} to {lengths[-1]} rollout steps; each is compared on its own last ones."
        )
    if sparse := [run.name for run in runs if run.metrics.index.to_series().diff().max() > 1]:
        notes.append(
            f"Not every step was logged in {', '.join(sparse[:3])}: a value may be a mean over several, and nothing is "
            "said at equal budget."
        )
    return notes


def _unpaired(runs: Sequence[Run], key: str) -> list[str]:
    """Arms without a seed in common with the first one: Welch's t-interval and a permutation test over runs."""
    from scipy import stats  # half a second, which `decide` does without

    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if (reduced := outcome(run, key)) is not None:
            values.setdefault(run.arm, {})[run.seed] = reduced
    notes = []
    control, *treated = values or [""]
    for arm in treated:
        ours, theirs = list(values[arm].values()), list(values[control].values())
        if values[arm].keys() & values[control].keys() or min(len(ours), len(theirs)) < 2:
            continue
        mean = sum(ours) / len(ours) - sum(theirs) / len(theirs)
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        p = stats.permutation_test((ours, theirs), lambda a, b: a.mean() - b.mean(), n_resamples=20_000, rng=0).pvalue
        notes.append(
            f"No seed is in both {arm} and {control}, so they are not paired: {with_interval(key, mean, low, high)} in "
            f"{key}, {len(ours)} against {len(theirs)} runs, Welch's 95 % interval, permutation test p = {p:.3g}."
        )
    return notes
