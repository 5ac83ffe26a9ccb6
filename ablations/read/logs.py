"""Logs of trainers as tables: JSON of the transformers Trainer, JSON lines, tables and charts as CSV, printed lines,
offline runs of W&B, TensorBoard, a JSON file a run."""

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import pandas as pd
from pydantic import with_config
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import LARGEST, LARGEST_WHOLE, MOST_COLUMNS, MOST_STEPS, OPEN, checked, short
from ablations.errors import DamagedError
from ablations.read.run import StudyError
from ablations.read.separated import lines_of
from ablations.texts import MB, json_tree, opened, read_bytes, read_text

MOST_BYTES, MOST_VALUES, MOST_ROWS = 64 * MB, 5_000_000, 200_000
"""Of a log: ten thousand steps of a hundred metrics have 30 MB."""


@dataclass(frozen=True, eq=False)
class Log:
    """One file, checked: every column has a name of its own and holds numbers, and every row has a step."""

    KINDS: ClassVar = (
        "trainer_state.json", "metrics.jsonl", "*.jsonl", "*.csv", "*.tsv", "*.wandb", "events.out.tfevents.*", "*.log",
        "*.out", "*.txt", "*.json",
    )  # fmt: skip
    file: Path
    rows: pd.DataFrame
    """A row for each time that something was logged, with `step`; a number that is not finite is infinite, one that was
    not logged NaN. `arm` and `seed` are text and whole numbers, where the log has both."""
    name: str = ""
    """The run's name in the file."""
    guess: str = ""
    """What was guessed of the file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Flat; empty where the file has none."""
    given: bool = False
    """Its arm and seed are the user's word."""


def logs_below(path: Path) -> tuple[list[Log], list[str]]:
    """The logs in a folder, or of a file, and a sentence for each that cannot be read. Of checkpoints of one run the
    latest counts, of several kinds the first.

    Raises StudyError: there is no such path.
    """
    if not path.exists():
        raise StudyError(f"{path}: no such file or folder")
    found: list[Log] = []
    left_out: list[str] = []
    for file in [path] if path.is_file() else _files(path):
        try:
            found += _read(file)
        except StudyError as reason:
            left_out.append(str(reason))
    return found, left_out


def _files(folder: Path) -> list[Path]:
    for kind in Log.KINDS:
        files = sorted({file.resolve(): file for file in folder.rglob(kind)}.values())
        if kind == Log.KINDS[0]:
            latest = {_home(file): file for file in sorted(files, key=_checkpoint)}
            files = sorted(latest.values())
        if files:
            return files
    return []


def _checkpoint(file: Path) -> int:
    """The step of the checkpoint that a file is in; that of a whole run is the latest."""
    if not file.parent.name.startswith("checkpoint-"):
        return 1 << 62
    if number := re.fullmatch(r"checkpoint-(\d{1,15})", file.parent.name):
        return int(number[1])
    try:  # checkpoint-best, checkpoint-final
        return int(json_tree(read_bytes(file, MOST_BYTES), file, most=MOST_VALUES)["global_step"])
    except (OSError, DamagedError, ValueError, KeyError, TypeError):
        return -1


def _home(file: Path) -> Path:
    return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent


def _read(file: Path) -> list[Log]:
    """The logs in a file: one, or those of a chart of several runs.

    Raises StudyError in one line: the file, its line or entry, the field and what it must be."""
    try:
        if file.name == "trainer_state.json":
            return [_trainer_state(file)]
        if file.suffix == ".jsonl":
            return [_json_lines(file)]
        if file.suffix in (".csv", ".tsv"):
            return _csv(file)
        if file.suffix == ".wandb":
            return [_wandb(file)]
        if file.suffix in (".log", ".out", ".txt"):
            return _csv(file) if _is_table(file) else [_console(file)]
        if file.suffix == ".json":
            return [_json(file)]
        return [_tensorboard(file)]
    except OSError as error:
        raise StudyError(f"{file}: cannot be read ({error.strerror or error})") from None


Row = dict[str, Any]


@with_config(OPEN)
class TrainerState(TypedDict):
    """What the transformers Trainer writes beside a checkpoint, as far as it is read here."""

    log_history: list[Row]


@with_config(OPEN)
class Line(TypedDict, total=False):
    """A line of verl's file logger, or a flat one."""

    data: Row


def _trainer_state(file: Path) -> Log:
    state = checked(
        json_tree(read_bytes(file, MOST_BYTES, StudyError), file, StudyError, most=MOST_VALUES),
        TrainerState,
        file,
        StudyError,
    )
    return Log(file, _table(file, "entry {} of log_history", state["log_history"]))


def _json_lines(file: Path) -> Log:
    """An object a line, `{"step": 1, "data": {...}}` (verl) or flat."""
    lines = read_text(file, MOST_BYTES, StudyError).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        place = f"{file}, line {number}"
        row: Row = {**checked(json_tree(line, place, StudyError), Line, place, StudyError)}
        rows.append({**row.get("data", row), "step": row.get("step")})
    return _of_rows(file, "line {}", rows)


def _of_rows(file: Path, unit: str, rows: Sequence[Row]) -> Log:
    """Rows with names of their own, of one run or of several. Rows with none of the numbers that most of them have, as
    settings before and a summary after, are no rows of a curve."""
    numbers = [{key for key, value in row.items() if type(value) in (int, float)} for row in rows]
    times = Counter(chain.from_iterable(numbers))
    usual = {key for key, count in times.items() if 2 * count > len(rows)}
    kept = [row for row, own in zip(rows, numbers, strict=True) if own & usual] or [*rows]
    names = list(dict.fromkeys(chain.from_iterable(kept)))
    skipped = (
        f"{len(rows) - len(kept)} of {len(rows)} rows have none of the others' numbers" if len(kept) < len(rows) else ""
    )
    has_step = any(row["step"] is not None for row in kept)
    if not has_step or len({str(row["step"]) for row in kept}) < len(kept):
        owned = _owned(kept, names, "step" if has_step else None)
        if owned.rows and (owned.cell or not has_step):
            return Log(
                file, _table(file, unit, owned.rows, owned.cell), guess="; ".join(filter(None, (owned.said, skipped)))
            )
    return Log(file, _table(file, unit, kept), guess=skipped)


SETTINGS = ("config", "args", "hparams", "hyperparameters", "settings")
"""What an object with a run calls its settings."""
SEED_IN_PATH = re.compile(r"seed[-_=]?\d", re.IGNORECASE)


def _json(file: Path) -> Log:
    """One run as an object, whose lists of numbers are its curves; or rows as a list of objects."""
    tree = json_tree(read_bytes(file, MOST_BYTES, StudyError), file, StudyError, most=MOST_VALUES)
    if isinstance(tree, list) and tree and all(isinstance(row, dict) for row in tree):
        return _of_rows(file, "entry {}", [{**row, "step": row.get("step")} for row in tree])
    if not isinstance(tree, dict):
        raise StudyError(f"{file}: is not a run, which is an object with numbers or a list of objects")
    settings: Row = next((tree[name] for name in SETTINGS if isinstance(tree.get(name), dict)), {})
    flat = _flat({key: value for key, value in tree.items() if value is not settings and key not in (*STEPS, "seed")})
    curves = {key: value for key, value in flat.items() if isinstance(value, list)}
    rows: list[Row] = [
        {"step": at + 1, **{key: values[at] for key, values in curves.items() if at < len(values)}}
        for at in range(max(map(len, curves.values()), default=1))
    ]
    rows[-1] |= {key: value for key, value in flat.items() if not isinstance(value, list)}
    if not flat:
        raise StudyError(f"{file}: has no numbers, so it is not a run")
    arm = next((tree[name] for name in ARMS if isinstance(tree.get(name), str)), None)
    seed = tree.get("seed", settings.get("seed"))
    if arm and isinstance(seed, int) and not (guessed(file.stem) or any(map(SEED_IN_PATH.search, file.parts[-3:]))):
        rows = [{**row, "arm": _part(arm), "seed": seed} for row in rows]
        return Log(file, _table(file, "point {}", rows, ("arm", "seed")), settings=settings)
    return Log(file, _table(file, "point {}", rows), settings=settings)


def _flat(tree: Mapping[str, Any], above: str = "") -> Row:
    """The numbers of an object and its lists of numbers, those of inner objects with their path as name."""
    found: Row = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{key}/")
        elif type(value) in (int, float) or (
            isinstance(value, list) and len(value) > 1 and all(type(one) in (int, float) for one in value)
        ):
            found[above + key] = value
    return found


STEPS = ("step", "Step", "_step", "global_step")
"""Names of the column with the step: the first of them that a table has; the others count the same in another way."""
COUNTED = (
    "total_timesteps", "total timesteps", "timesteps", "timestep", "env_step", "env_steps", "frame", "frames",
    "iteration", "iter", "update", "epoch", "episode",
)  # fmt: skip
"""What counts steps where no column is called so."""
LEAST_COUNTED = 10
"""Rows from which a first column of evenly rising whole numbers counts the steps, whatever its name."""
SPLIT_COLUMNS = ("phase", "split", "partition")
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing"}
"""What a column that tells metrics of one run apart has as its values."""

ARMS = (
    "arm", "method", "algorithm", "algo", "agent", "variant", "config", "condition", "group", "model", "name",
    "run_name", "experiment", "method_name", "algorithm_name", "agent_name", "model_name",
)  # fmt: skip
SEEDS = ("seed", "random_seed", "trial", "rep", "replicate", "run")
"""Columns of a table with several runs that say whose a row is: the first of them that it has."""
NAMES = ("run_id", "run_name", "run", "name", "id", "experiment")
"""Columns whose text may be the name of a run, with its seed in it."""
MOST_KINDS = 200
"""Values of a column that tells arms apart."""


@dataclass(frozen=True)
class Owned:
    """Rows of a table with what is known of whose each is."""

    rows: list[Row]
    cell: tuple[str, ...]
    """Of `arm` and `seed` those that each row has now."""
    said: str = ""
    """Which columns were taken for them."""


def _owned(rows: Sequence[Row], names: Sequence[str], given: str | None = None) -> Owned:
    """The rows of a table of several runs: arm, seed and step by its columns; no rows where it has none of them.

    given: the column of the step, where it has one.

    A table of results has a row a run, so that its step is 1. Where several rows are of one arm and seed, what comes
    before the numbers tells arms apart as well: other columns of text, and of the settings of a sweep left of arm or
    seed. One column that is enough is taken alone, of several the one with the fewest arms.
    """
    arm, seed = _whose(rows, names)
    lowered = {name.lower(): name for name in reversed(names)}
    counted = given or next((lowered[one] for one in COUNTED if one in lowered), None)
    called = next((lowered[one] for one in (*NAMES, *ARMS) if one in lowered and _are_names(rows, lowered[one])), None)
    if seed is None and called is None:
        return _stepped(rows, names, counted) if not given else Owned([], ())
    found = Owned([], ())
    split = next((lowered[one] for one in SPLIT_COLUMNS if one in lowered and _is_split(rows, lowered[one])), None)
    if seed is not None:
        last = max(names.index(name) for name in (arm, seed) if name)
        others = [
            name
            for at, name in enumerate(names)
            if name not in (arm, seed, counted, split, *STEPS) and _tells(rows, name, seed, at < last)
        ]
        for step in (given,) if given else dict.fromkeys((None, counted)):
            run = [*([arm] if arm else []), seed, step, split]
            chosen = [arm] if arm else []
            kinds = _kinds(rows, run)
            enough = [name for name in others if kinds < len(rows) == _kinds(rows, [name, *run])]
            for name in [min(enough, key=lambda one: _kinds(rows, [arm, one]))] if enough else others:
                if kinds < len(rows) and (more := _kinds(rows, [*chosen, name, seed, step, split])) > kinds:
                    chosen, kinds = [*chosen, name], more
            found = _taken(rows, chosen, seed, step, split)
            if kinds == len(rows):
                return found
    if called is not None:
        cells = [guessed(str(row[called])) or ("", 0) for row in rows]
        step = counted if len({*cells}) < len(rows) else None
        kept = [{key: value for key, value in row.items() if key not in (called, arm, seed, step)} for row in rows]
        own = [
            {**row, "arm": _part(cell[0]), "seed": cell[1], "step": whole[step] if step else 1}
            for whole, row, cell in zip(rows, kept, cells, strict=True)
        ]
        told = f", step the column {step}" if step and step != given else ""
        return Owned(own, ("arm", "seed"), f"arm and seed are in the names of the column {called}{told}")
    return found


def _stepped(rows: Sequence[Row], names: Sequence[str], step: str | None) -> Owned:
    """The rows of one run, by the column that counts its steps: one that is called so, or the first, if it counts."""
    said = ""
    if step is None:
        first = next((name for name in names if name not in STEPS), "")
        values = [_number(row.get(first)) for row in rows]
        apart = {b - a for a, b in itertools.pairwise(values) if a is not None and b is not None}
        stride = next(iter(apart)) if len(apart) == 1 and None not in values else 0.0
        if len(rows) < LEAST_COUNTED or stride < 1 or not stride.is_integer() or values[0] not in (0, 1, stride):
            return Owned([], ())
        step, said = first, f"step the column {first}"
    own = [{**{k: v for k, v in row.items() if k != step}, "step": row.get(step)} for row in rows]
    if len(own) > 1 and own[-1]["step"] == own[-2]["step"]:  # some trainers log once more when they end
        own[-2:] = [own[-2] | own[-1]]
        said = "; ".join(filter(None, (said, "the last step is in two rows, of which the later counts")))
    return Owned(own, (), said)


def _is_split(rows: Sequence[Row], name: str) -> bool:
    kinds = {str(row.get(name)).lower() for row in rows}
    return len(kinds) > 1 and kinds <= SPLITS


def _whose(rows: Sequence[Row], names: Sequence[str]) -> tuple[str | None, str | None]:
    """The columns of arm and seed; a seed is a whole number, where a run or a trial may be a name."""
    lowered = {name.lower(): name for name in reversed(names)}
    inner = {key for row in rows for key, value in row.items() if isinstance(value, (dict, list))}
    arm = next((lowered[one] for one in ARMS if one in lowered and lowered[one] not in inner), None)
    seeds = [lowered[one] for one in SEEDS if one in lowered]
    named = [name for name in seeds[:1] if name.lower() == "seed"]
    whole = [
        name
        for name in seeds
        if all((_number(row.get(name)) or 0.5).is_integer() or str(row.get(name)) == "0" for row in rows)
    ]
    return arm, next(iter(named or whole), None)


def _taken(rows: Sequence[Row], arms: Sequence[str], seed: str, step: str | None, split: str | None) -> Owned:
    """The rows with these columns as their arm, their seed and their step; those of several splits in one, where the
    split is in the names of the metrics."""
    owned: list[Row] = []
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        own = {key: value for key, value in row.items() if key not in (*arms, seed, step, split, "step")}
        cell: Row = {"arm": "-".join(_part(row.get(name)) for name in arms)} if arms else {}
        cell |= {"seed": row.get(seed), "step": 1 if step is None else row.get(step)}
        if split:
            own = {f"{row.get(split)}/{key}": value for key, value in own.items()}
            if (first := merged.setdefault((*cell.values(),), cell)) is not cell:
                first |= own
                continue
            cell |= own
            owned.append(cell)
        else:
            owned.append({**own, **cell})
    told = f", metrics by the column {split}" if split else ""
    return Owned(owned, ("arm", "seed") if arms else ("seed",), _said(arms, seed, step) + told)


def _kinds(rows: Sequence[Row], names: Sequence[str | None]) -> int:
    """How many rows differ in these columns."""
    return len({tuple(str(row.get(name)) for name in names if name) for row in rows})


def _said(arms: Sequence[str], seed: str, step: str | None) -> str:
    if [*arms] == ["arm"] and seed == "seed" and step is None:
        return ""
    whose = f"arm is the column{'s' * (len(arms) > 1)} {' and '.join(arms)}, " if arms else ""
    return f"{whose}seed the column {seed}" + (f", step the column {step}" if step else "")


def _part(value: object) -> str:
    """A value as a part of an arm's name."""
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "-", str(value)).strip("-. ") or "none"


def _tells(rows: Sequence[Row], name: str, seed: str, before: bool) -> bool:
    """True for a column that may tell arms apart: text of a few kinds, or numbers before arm or seed that are whole or
    occur with every seed, as those of a sweep."""
    values = [row.get(name) for row in rows]
    kinds = len({str(value) for value in values})
    if not 1 < kinds <= min(MOST_KINDS, len(rows) // 2):
        return False
    numbers = [_number(value) for value in values if value not in (None, "")]
    if None in numbers:
        return True
    is_whole = all(number is not None and number.is_integer() for number in numbers)
    return before and (is_whole or _kinds(rows, [name, seed]) == kinds * _kinds(rows, [seed]))


def _are_names(rows: Sequence[Row], name: str) -> bool:
    return bool(rows) and all(isinstance(row.get(name), str) and guessed(row[name]) for row in rows)


GUESSED = re.compile(
    r"(?P<arm>.+?)[-_. ][(\[]?(?:(?:seed|run|rep|trial)[-_= ]?|(?:sd|s|log)[-_=]?)(?P<seed>\d{1,9})[)\]]?"
    r"(?P<rest>(?:[-_. ].*)?)",
    re.IGNORECASE,
)
"""A name with a seed in its middle; what follows is part of the arm, but for a date."""
DATE = re.compile(r"[-_. ]\d{4,14}(?=[-_. ]|$)")


def guessed(name: str) -> tuple[str, int] | None:
    """Arm and seed of a name with a seed in it.

    >>> guessed("dapo_qwen7b_s0_0912"), guessed("grpo-seed3"), guessed("exp_seed_1_lr2"), guessed("checkpoints")
    (('dapo_qwen7b', 0), ('grpo', 3), ('exp_lr2', 1), None)
    """
    found = GUESSED.fullmatch(name)
    return (found["arm"].rstrip("-_. ") + DATE.sub("", found["rest"]), int(found["seed"])) if found else None


def _csv(file: Path) -> list[Log]:
    """A log of one run, a table with columns of arm and seed, or a chart of several runs as W&B exports it."""
    try:
        numbered = list(lines_of(read_text(file, MOST_BYTES, StudyError, encoding="utf-8-sig")))
    except csv.Error as error:
        raise StudyError(f"{file} cannot be read ({error})") from None
    header = [name.strip() for name in numbered[0][1]] if numbered else []
    names = [name for name in header if name]  # a column without a name numbers the rows
    for twice in [name for name, times in Counter(names).items() if times > 1]:
        first, *others = (at for at, name in enumerate(header) if name == twice)
        if any(len(line) == len(header) and line[at] != line[first] for _, line in numbered[1:] for at in others):
            raise StudyError(f"{file}: has the column {twice} twice")
    names = list(dict.fromkeys(names))
    if len(header) > MOST_COLUMNS:
        raise StudyError(f"{file}: has {len(header):,} columns; at most {MOST_COLUMNS:,} are read")
    step = next((name for name in STEPS if name in names), None)
    rows: list[Row] = []
    for number, line in numbered[1:]:
        if len(line) != len(header):
            raise StudyError(f"{file}, line {number}: has {len(line)} values for {len(header)} columns")
        row: Row = {name: value for name, value in zip(header, line, strict=True) if name and value != ""}
        rows.append({"step": row.get(step) if step else None, **{k: v for k, v in row.items() if k not in STEPS}})
    if charted := [name for name in names if CHARTED.fullmatch(name)]:
        return _chart(file, rows, charted)
    if len(wide := [name for name in names if SEED_COLUMN.fullmatch(name)]) > 1:
        rows, told = _of_columns(file, rows, names, wide)
        return [Log(file, _table(file, "row {}", rows, ("arm", "seed")), guess=told)]
    if step is None:
        owned = _owned(rows, names)
        if not owned.rows and rows:
            raise StudyError(
                f"{file}: has no column step, none of arm and seed, and no `change` as a ledger has; it has "
                f"{short(', '.join(names))}"
            )
        return [Log(file, _table(file, "row {}", owned.rows, owned.cell), guess=owned.said)]
    arm, seed = _whose(rows, names)
    if _kinds(rows, [arm, seed, "step"]) < len(rows) and (owned := _owned(rows, names, "step")).cell == ("arm", "seed"):
        return [Log(file, _table(file, "row {}", owned.rows, owned.cell), guess=owned.said)]
    whose = {arm: "arm", seed: "seed"} if arm and seed else {seed: "seed"} if seed else {}
    rows = [{whose.get(name, name): value for name, value in row.items()} for row in rows]
    told = _said([arm] if arm else [], str(seed), None) if whose else ""
    return [Log(file, _table(file, "row {}", rows, tuple(whose.values())), guess=told)]


SEED_COLUMN = re.compile(r"seed[-_ ]?(\d{1,9})", re.IGNORECASE)


def _of_columns(file: Path, rows: Sequence[Row], names: Sequence[str], wide: Sequence[str]) -> tuple[list[Row], str]:
    """A row a run of a table with a column for each seed, and what was taken for what. Raises StudyError: no column of
    arms."""
    lowered = {name.lower(): name for name in reversed(names)}
    arm = next((lowered[one] for one in ARMS if one in lowered), None)
    if arm is None:
        raise StudyError(f"{file}: has a column for each seed and none of arms, such as method or model")
    found = [
        {"step": row.get("step") or 1, "arm": _part(row.get(arm)), "seed": name.lstrip("SEDsed-_ "), "value": row[name]}
        for row in rows
        for name in wide
        if row.get(name) is not None
    ]
    return found, f"arm is the column {arm}, seeds are {short(', '.join(wide))}, and their numbers are called value"


CHARTED = re.compile(r"(?P<run>.+?) - (?P<metric>[^\s].*?)(?P<end>__MIN|__MAX)?")
"""A column of a chart of several runs: the run, its metric, and what W&B adds to each."""


def _chart(file: Path, rows: Sequence[Row], charted: Sequence[str]) -> list[Log]:
    """One log a run. Raises StudyError: a line of the chart is a mean over runs."""
    found: dict[str, list[Row]] = {}
    for name in charted:
        column = CHARTED.fullmatch(name)
        assert column is not None
        plain = f"{column['run']} - {column['metric']}"
        if column["end"]:
            if any(row.get(name) is not None and row.get(name) != row.get(plain) for row in rows):
                raise StudyError(f"{file}: {plain} is a mean over runs or smoothed; export each run, as logged")
            continue
        if column["metric"] in STEPS:
            continue
        own = [{"step": row.get("step"), column["metric"]: row[name]} for row in rows if row.get(name) is not None]
        found.setdefault(column["run"], []).extend(own)
    return [Log(file, _table(file, f"{run}, row {{}}", own), run) for run, own in found.items() if own]


STEP_LINE = re.compile(r"\bstep:(\d{1,12}) - (.+)")
PRINTED = re.compile(
    r"(?:step:(?=\d)|(?=\d{1,12}/))(\d{1,12})(?:/\d{1,12})?((?: [\w./-]{1,60}: ?(?:[-+.\deE]+|nan|inf)[a-z%]{0,2})+)"
)
"""`step:125/1480 val_loss:4.3 train_time:17ms` or `125/1480 val_loss: 4.3`, as speed runs of nanoGPT print it."""
LONGEST_LINE = 100_000


def _is_table(file: Path) -> bool:
    """Whether printed lines are a table with tabs, as Spinning Up's progress.txt."""
    first, second = (*read_text(file, MOST_BYTES, StudyError, errors="replace").splitlines()[:2], "", "")[:2]
    return first.count("\t") > 1 and first.count("\t") == second.count("\t")


def _console(file: Path) -> Log:
    """What a trainer printed: verl's `step:13 - critic/score/mean:0.31 - ...`, or the dictionaries of the transformers
    Trainer, which have no step and are counted."""
    rows: list[Row] = []
    counted: list[Row] = []
    for line in read_text(file, MOST_BYTES, StudyError, errors="replace").splitlines():
        line = re.sub(r"\x1b\[[0-9;]*m", "", line[:LONGEST_LINE]).strip()
        if found := STEP_LINE.search(line):
            parts = (part.rpartition(":") for part in found[2].split(" - "))
            values = {key.strip(): value.strip() for key, _, value in parts if key}
            rows.append({"step": found[1], **{k: v for k, v in values.items() if _number(_plain(v)) is not None}})
        elif found := PRINTED.fullmatch(line):
            values = dict(re.findall(r" ([\w./-]+): ?([-+.\deE]+|nan|inf)", found[2]))
            if rows and rows[-1]["step"] == found[1] and not {*values} & {*rows[-1]} - {"train_time", "step_avg"}:
                rows[-1] |= values  # training and validation print a line each
            else:
                rows.append({"step": found[1], **values})
        elif line.startswith("{") and line.endswith("}") and "'" in line:
            pairs = re.findall(r"'([^']{1,200})': '?([-+.\deE]+|nan|inf)'?", line)
            if pairs:
                counted.append({"step": len(counted) + 1, **dict(pairs)})
    rows = [{k: v if k == "step" else _plain(v) for k, v in row.items()} for row in rows]
    if not rows and not counted:
        raise StudyError(f"{file}: has no lines of verl (step:13 - reward:0.3) and none of TRL ({{'loss': 0.1, ...}})")
    # The dictionaries that a trainer prints at its end have no metrics of steps.
    return Log(
        file, _table(file, "printed line {}", rows or counted), guess="" if rows else "steps are printed lines, counted"
    )


def _plain(text: object) -> object:
    """A number as numpy prints it, `np.float64(0.5)`, as text of a number."""
    inner = re.fullmatch(r"np\.\w+\((.+)\)", text) if isinstance(text, str) else None
    return inner[1] if inner else text


def _table(file: Path, unit: str, rows: Sequence[Mapping[str, Any]], cell: tuple[str, ...] = ()) -> pd.DataFrame:
    """Rows as a table of numbers; a metric that is text wherever it is logged is left out.

    unit: what a row is called in a message.
    cell: the columns that say whose row it is.
    """
    if not rows:
        raise StudyError(f"{file}: nothing was logged in it")
    if len(rows) > MOST_ROWS:
        raise StudyError(f"{file}: has more than {MOST_ROWS:,} rows")
    table: list[Row] = []
    wrong: dict[str, str] = {}  # metric -> where it is no number
    for number, row in enumerate(rows, 1):
        place = f"{file}, {unit.format(number)}"
        kept: Row = {"step": _whole(row.get("step"), "step", place, MOST_STEPS)}
        if "arm" in cell:
            if not (arm := row.get("arm")):
                raise StudyError(f"{place}: arm is missing")
            kept["arm"] = arm
        if "seed" in cell:
            kept["seed"] = _whole(row.get("seed"), "seed", place, LARGEST_WHOLE)
        for key, value in row.items():
            if key in kept or value is None or value == "":
                continue
            measured = _number(value)
            if measured is None:
                wrong.setdefault(key, f"{place}: {key} is {short(value)}; it must be a number")
            else:
                kept[key] = measured
        table.append(kept)
    if len(columns := {*chain.from_iterable(table)}) > MOST_COLUMNS:
        raise StudyError(f"{file}: has {len(columns):,} metrics; at most {MOST_COLUMNS:,} are read")
    if mixed := [reason for key, reason in wrong.items() if key in columns]:
        raise StudyError(mixed[0])
    return pd.DataFrame(table)


def _number(value: object) -> float | None:
    """A number as float, infinite if it is not finite; None for anything else. W&B writes NaN as text."""
    if isinstance(value, (bool, int, float, str)):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            return None if isinstance(value, str) else math.inf
        return found if abs(found) <= LARGEST else math.inf  # a NaN is not, either
    return None


def _whole(value: object, name: str, place: str, most: int) -> int:
    """A step or a seed; a table with an empty cell has them as 3.0."""
    if value is None or value == "":
        raise StudyError(f"{place}: {name} is missing")
    found: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,40}(\.0*)?", value):
        found = int(value.partition(".")[0])
    elif isinstance(value, float) and value.is_integer():
        found = int(value)
    if found is None or not 0 <= found <= most:
        raise StudyError(f"{place}: {name} is {short(value)}; it must be a whole number from 0 to {most:.3g}")
    return found


BLOCK = 1 << 15
HEADER = 7
"""LevelDB's log format, which W&B writes: blocks of 32 kB; a chunk has checksum (4), length (2) and kind (1)."""


def _records(file: Path) -> Iterator[bytes]:
    """The records of a W&B file; a torn last one is left out. Raises StudyError where a chunk was altered."""
    data = read_bytes(file, MOST_BYTES, StudyError)
    if data[:4] != b":W&B":
        raise StudyError(f"{file}: is not a file of W&B")
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block is padding
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        chunk = data[place + HEADER : place + HEADER + length]
        if len(chunk) < length or not any(data[place : place + HEADER]):  # cut off while it was written
            return
        if crc32(data[place + 6 : place + 7] + chunk) != int.from_bytes(data[place : place + 4], "little"):
            raise StudyError(f"{file}, byte {place}: the record does not match its checksum; copy the file again")
        parts = chunk if kind in (1, 2) else parts + chunk  # 1: whole, 2: first, 3: middle, 4: last
        if kind in (1, 4):
            yield parts
        place += HEADER + length


def _wandb(file: Path) -> Log:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise StudyError(f"{file}: files of W&B need the package wandb: pip install wandb") from None
    rows: list[Row] = []
    settings: Row = {}
    name = ""
    for number, data in enumerate(_records(file), 1):
        place = f"{file}, record {number}"
        try:
            record = Record.FromString(data)
        except DecodeError as error:
            raise StudyError(f"{place}: is none of W&B ({error})") from None
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = _items(record.history.item, place)
            rows.append({**items, "step": items.get("train/global_step", items.get("_step"))})
        elif kind == "run":
            name = record.run.display_name
        if kind in ("run", "config"):
            settings |= _items(record.run.config.update if kind == "run" else record.config.update, place)
    # The Trainer's callback writes `train/` before every key.
    named = [{k.removeprefix("train/"): v for k, v in row.items() if k not in STEPS[2:]} for row in rows]
    for row, whole in zip(named, rows, strict=True):
        row["step"] = whole["step"]
    settings = {key: value for key, value in settings.items() if key != "_wandb"}
    return Log(file, _table(file, "row {} of its history", named), name, settings=settings)


def _items(items: Any, place: str) -> Row:
    names = {item.key or "/".join(item.nested_key): item.value_json for item in items}
    return {name: json_tree(text, f"{place}, {name}", StudyError) for name, text in names.items()}


def _tensorboard(file: Path) -> Log:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-not-found]
        from tensorboard.util.tensor_util import make_ndarray  # type: ignore[import-not-found]
    except ImportError:
        raise StudyError(f"{file}: TensorBoard's files need the package tensorboard: pip install tensorboard") from None
    rows: dict[int, Row] = {}
    with opened(file, MOST_BYTES, StudyError):
        pass  # TensorBoard opens it by its name
    try:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if math.prod(dimension.size for dimension in value.tensor.tensor_shape.dim) != 1:
                    continue  # a picture or a histogram; its shape may be larger than the file
                number = make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
                if getattr(number, "size", 1) == 1 and getattr(getattr(number, "dtype", None), "kind", "f") in "fiu":
                    row = rows.setdefault(event.step, {"step": event.step})
                    row[value.tag.removeprefix("train/")] = float(number)
    except Exception as error:  # TensorBoard's reader has errors of its own, of protobuf and of numpy
        raise StudyError(f"{file}: is not an event file ({' '.join(str(error).split())[:100]})") from None
    return Log(file, _table(file, "step {}", [{**row, "step": step} for step, row in rows.items()]))
