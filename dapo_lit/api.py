"""The commands as functions, for scripts and notebooks: the same runs, the same checks, results as objects.

    from dapo_lit import ablate, report, train

    run = train("dapo", regime="joint", steps=16, seed=0)
    run.metrics["rollout/accuracy"].plot()

Each call is the command in a process of its own, so that it makes the same bits, leaves nothing behind in this one and
can be interrupted. What the command prints is printed; a mistake is raised as `UserError` with the command's message.
"""

import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ablations.command_text import setting
from ablations.ending import STARTER
from ablations.errors import UserError
from ablations.texts import MB, json_tree, read_bytes
from dapo_lit.reward_source import written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Data = Union[str, Path, Iterable[Mapping[str, Any]], "pd.DataFrame"]
"""A file, a hub id, or rows with `problem` and `answer`."""
Reward = str | Callable[..., Any] | Sequence[Callable[..., Any] | str]
"""A rule of conf/reward (`math`, `number`, ...), a function (of a module, of the script, of a notebook's cell), or its
dotted path. Of a list of functions, as TRL takes it, the first says what is correct, and all are added up."""
CODE = "code"
"""In the folder of runs: the sources of rewards that scripts and notebooks define."""


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not."""

    path: Path

    @property
    def metrics(self) -> "pd.DataFrame":
        """A row a step, a column a metric (docs/metrics.md); the index is the rollout step.

        Raises UserError: there is no run, or it has no row yet.
        """
        from ablations.files.metrics_file import read_metrics

        table = read_metrics(self.path).table
        if table.empty:
            raise UserError(f"{self.path}: no rows of metrics; a run is a folder such as runs/<study>/<arm>/seed_<n>")
        return table

    @property
    def config(self) -> dict[str, Any]:
        """The config, as config.yaml has it."""
        from ablations.files.record import read_config

        return read_config(self.path)

    @property
    def recorded(self) -> list[int]:
        """Steps whose completions were kept (`logger.rollouts_every`)."""
        files = (self.path / "rollouts").glob("step_*.parquet")
        return sorted(int(file.stem.removeprefix("step_")) for file in files)

    def completions(self, step: int) -> "pd.DataFrame":
        """Every completion of a step, with verdict, reward, advantage and whether it was trained on.

        Raises UserError: the step was not recorded.
        """
        from ablations.files.tables import read_table
        from dapo_lit.runs.rollout_table import rollouts_file

        if step not in (recorded := self.recorded):
            kept = ", ".join(map(str, recorded)) or "none"
            raise UserError(f"{self.path}: the completions of step {step} were not kept; kept: {kept}")
        return read_table(rollouts_file(self.path, step))

    def plot(self, key: str = "rollout/accuracy", x: str = "step") -> "Figure":
        """A metric over steps, or over another axis such as `tokens_generated`."""
        from ablations.figures.curve_figures import plot_metric
        from ablations.read.runs import load

        return plot_metric(load(self.path), key, x=x)

    @property
    def page(self) -> Path:
        """run.html: the curves and the completions."""
        return self.path / "run.html"

    def _repr_html_(self) -> str:
        try:
            last = self.metrics.iloc[-1]
        except UserError as error:  # a notebook shows what is returned, and a traceback for what is raised
            return f"<code>{error}</code>"
        return f"<code>{self.path}</code>: step {last.name}, training accuracy {last.get('rollout/accuracy', 0):.1%}"


@dataclass(frozen=True)
class StudyResult:
    """A study on disk, with its report."""

    path: Path
    page: Path
    """report.html."""

    @cached_property
    def report(self) -> dict[str, Any]:
        """report.json: outcomes, comparisons and effects, numbers in full.

        Raises UserError: there is none yet.
        """
        file = self.page.parent / "report.json"
        if not file.is_file():
            raise UserError(f"{file}: no report yet; dapo_lit.report({str(self.path)!r}) writes it")
        return dict(json_tree(read_bytes(file, 100 * MB), file))

    @property
    def effects(self) -> "pd.DataFrame":
        """The table of effects: difference, interval, p and verdict of each comparison."""
        import pandas as pd

        return pd.DataFrame(self.report["tables"].get("effects", []))

    @property
    def runs(self) -> list[Run]:
        """The runs below the study's folder.

        Raises UserError: there is no such folder, or it has packed cells, which are tables for a whole study.
        """
        from ablations.read.runs import packed_folders

        found = [Run(file.parent) for file in sorted(self.path.glob("*/seed_*/metrics.jsonl"))]
        if not found and not self.path.is_dir():
            raise UserError(f"{self.path}: no such folder; a study is a folder such as runs/<study>")
        if not found and packed_folders(self.path):
            raise UserError(f"{self.path}: its runs are packed; ablations.read.runs.load reads them")
        return found

    def plot(self, keys: Iterable[str] = ("rollout/accuracy", "rollout/entropy")) -> "Figure":
        """Paired differences by step, with their intervals."""
        from ablations.figures.difference_figures import plot_differences
        from ablations.read.runs import load

        return plot_differences(load(self.path), list(keys))


def train(
    experiment: str = "dapo",
    *overrides: str,
    regime: str | None = None,
    steps: int | None = None,
    seed: int = 0,
    model: str | Path | None = None,
    data: Data | None = None,
    reward: Reward | None = None,
    settings: Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
    reward_weights: Sequence[float] | None = None,
    **unknown: Any,
) -> Run:
    """Trains one policy; `python -m dapo_lit.train +experiment=...`.

    experiment: a file of conf/experiment; `hf` for a model and problems of your own.
    overrides: as on the command line, such as `"~regime"`.
    steps: rollout steps (`budget.steps`). model: a folder or hub id. data, reward: problems and how answers are scored.
    settings: further keys and their values, `{"algorithm.optimizer.lr": 1e-4}`.
    quiet: nothing is printed.
    reward_weights: of a list of rewards; None: 1 each.

    Raises UserError: with the command's message; an argument of TRL's, with what it is called here.
    """
    if unknown:
        raise UserError(_elsewhere(*unknown))
    from dapo_lit.cli.command import compose
    from dapo_lit.cli.jobs import arm_of

    given = [f"+experiment={experiment}", *([f"+regime={regime}"] if regime else []), *overrides]
    keys: dict[str, Any] = {"seed": seed, "runs_dir": str(runs_dir)}
    if steps is not None:
        keys["budget.steps"] = steps
    if model is not None:
        keys["policy.path"] = str(model)
    if data is not None:
        keys |= {"task.name": "file", "task.path": _file_of(data, Path(runs_dir))}
    if reward is not None:
        chosen, functions = _rewards(reward, Path(runs_dir) / CODE, reward_weights)
        given += chosen
        keys |= functions
    given += _settings(keys | dict(settings or {}))
    config = compose(*given)
    folder = config.folder(arm_of(config))
    _command("train", *given, quiet=quiet, code=Path(runs_dir) / CODE)
    return Run(folder)


def multirun(
    study_name: str,
    *overrides: str,
    seeds: Iterable[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> StudyResult:
    """The cells of a study, several at a time, and its report; `python -m dapo_lit.train -m ...`.

    study_name: the folder below `runs_dir`.
    overrides: what is studied, such as `"+experiment=ablate_dynamic_sampling"` or `"+study=leave_one_out"`.
    seeds: a pair or more of runs each; None: those of the study.

    Raises UserError: with the command's message.
    """
    given = {"study_name": study_name, "runs_dir": str(runs_dir)} | dict(settings or {})
    swept = [f"seed={','.join(map(str, seeds))}"] if seeds is not None else []
    _command("train", "-m", *overrides, *swept, *_settings(given), quiet=quiet)
    folder = Path(runs_dir) / study_name
    return StudyResult(folder, folder / "report" / "report.html")


def ablate(
    technique: str,
    *overrides: str,
    model: str | Path,
    data: Data,
    reward: Reward | None = None,
    settings: Mapping[str, Any] | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> StudyResult:
    """A technique on a model and problems of your own: a probe, then pairs of runs until it is decided.

    `python -m dapo_lit.ablate`; its arguments are those of `train`.

    Raises UserError: the technique cannot act here, or what the command refuses.
    """
    file = _file_of(data, Path(runs_dir))
    label = "".join(c if c.isalnum() or c == "_" else "_" for c in Path(file).stem)
    given = {"study_name": f"ablate_{technique}_{label}", "runs_dir": str(runs_dir)} | dict(settings or {})
    options = ["--model", str(model), "--data", file]
    if reward is not None:
        chosen, functions = _rewards(reward, Path(runs_dir) / CODE, None)
        options += ["--reward", functions.pop("reward.function", None) or chosen[0].removeprefix("reward=")]
        given |= functions
    _command(
        "ablate", technique, *options, *overrides, *_settings(given), quiet=quiet, code=Path(runs_dir) / CODE
    )  # fmt: skip
    folder = Path(runs_dir) / str(given["study_name"])
    return StudyResult(folder, folder / "report" / "report.html")


def report(
    folder: str | Path, *others: str | Path, output: str | Path | None = None, quiet: bool = False
) -> StudyResult:
    """Writes the report of a study, finished or not, or of packed cells; `python -m dapo_lit.report`.

    Raises UserError: there is nothing to report on.
    """
    first = Path(folder)
    out = Path(output) if output is not None else first / "report"
    _command("report", *map(str, (folder, *others)), f"output={out}", incomplete=(3,), quiet=quiet)
    return StudyResult(first, out / "report.html")


def _settings(values: Mapping[str, Any]) -> list[str]:
    """Keys and values as overrides.

    >>> _settings({"seed": 1, "algorithm.loss_options": {"width": 0.3}})
    ['seed=1', '++algorithm.loss_options={width: 0.3}']
    """
    from dapo_lit.config import is_free

    # Hydra takes a key that is new in a free mapping, such as an option of one's own loss, with a plus only.
    return [setting(f"++{key}" if is_free(key) else key, value) for key, value in values.items()]


def _file_of(data: Data, runs_dir: Path) -> str:
    """A file as it is; rows in a file whose name is their digest, so that another call with the same rows has it."""
    if isinstance(data, (str, Path)):
        return str(data)
    import pandas as pd

    rows = [*(data.to_dict("records") if isinstance(data, pd.DataFrame) else data)]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise UserError(
            "data: rows are mappings with `problem` and `answer`, [{'problem': '1+2=', 'answer': '3'}, ...]"
        )
    try:
        # Numbers and arrays of numpy have tolist.
        texts = [json.dumps(dict(row), ensure_ascii=False, default=lambda value: value.tolist()) for row in rows]
    except (AttributeError, TypeError) as error:
        raise UserError(f"data: rows hold texts, numbers and lists ({error})") from None
    lines = "".join(f"{text}\n" for text in texts)
    file = runs_dir / "data" / f"problems_{hashlib.sha256(lines.encode()).hexdigest()[:12]}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines, encoding="utf-8")
    return str(file)


def _function(reward: Callable[..., Any] | str, code: Path) -> str | None:
    """The dotted path of a function or another callable object; None for a rule's name.

    code: the folder for the source of one that the script or a notebook's cell defines.
    """
    if isinstance(reward, str):
        return reward if "." in reward else None
    # By identity: an object or a `partial` has no name of its own, and that of a function may mean another by now. Not
    # in the script or notebook itself, whose names the interpreter may keep in `builtins` too.
    names = {
        module: name
        for module, held in list(sys.modules.items())
        if held is not sys.modules["__main__"] and module != "builtins"
        for name, value in reversed(list(getattr(held, "__dict__", {}).items()))  # of several the first: its `def`
        if value is reward
    }
    if not names and getattr(reward, "__module__", None) == "__main__" and inspect.isfunction(reward):
        return written(reward, code)
    if names:
        defined_in = getattr(reward, "__module__", None)
        module = defined_in if defined_in in names else next(iter(names))
        return f"{module}.{names[module]}"
    raise UserError(
        f"reward={getattr(reward, '__qualname__', reward)}: no module has it at its top, so the workers that score "
        "answers cannot import it; write it into a file, such as my_reward.py, and give my_reward.score"
    )


def _rewards(reward: Reward, code: Path, weights: Sequence[float] | None) -> tuple[list[str], dict[str, Any]]:
    """The choice of a rule, and the keys of functions.

    Raises UserError: weights that are not those of a list, or a function that no worker can import.
    """
    if isinstance(reward, str) or callable(reward):
        if weights is not None:
            raise UserError("reward_weights: goes with a list of rewards")
        path = _function(reward, code)
        return ([], {"reward.function": path}) if path else ([f"reward={reward}"], {})
    paths = [_function(one, code) for one in reward]
    factors = list(weights) if weights is not None else [1.0] * len(paths)
    if not paths or None in paths or len(factors) != len(paths):
        raise UserError(
            f"reward: a list of functions, with a weight each; it has {len(paths)}, and reward_weights {len(factors)}"
        )
    others = {str(path): float(factor) for path, factor in zip(paths[1:], factors[1:], strict=True)}
    if len(paths) == 1 and factors == [1.0]:
        return [], {"reward.function": paths[0]}
    return [], {"reward.function": paths[0], "reward.weights": {"correctness": float(factors[0]), **others}}


def _elsewhere(*names: str) -> str:
    """What arguments are called here that TRL's trainer has."""
    from dapo_lit.config.parsing import NONE, other_trainers

    told = []
    for name in names:
        entry = other_trainers()["trl"].get(name)
        if entry is None:
            told.append(f"train() has no argument {name}; settings={{'key': value}} takes every key of a run")
        elif isinstance(entry, str) and entry.startswith(NONE):
            told.append(f"{name}: has no counterpart ({entry.removeprefix(NONE)})")
        else:
            key = entry if isinstance(entry, str) else entry["key"]
            told.append(f"{name}: is settings={{'{key}': ...}} here")
    return "; ".join(told)


def _command(
    name: str,
    *arguments: str,
    incomplete: tuple[int, ...] = (),
    quiet: bool = False,
    code: Path | None = None,
) -> None:
    """Runs a command and prints what it prints. Raises UserError for its exit code 2, RuntimeError for another."""
    # What this process can import, the command's workers can as well: a reward next to the script or the notebook.
    own = [str(code.resolve())] if code is not None and code.is_dir() else []
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path), *own])
    plain = {"COLUMNS": "96", **os.environ}
    plain.pop("FORCE_COLOR", None)  # a notebook's kernel sets it
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", f"dapo_lit.{name}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**plain, "PYTHONPATH": path, STARTER: str(os.getpid())},  # a kill of this process ends the command too
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not quiet and not line.startswith("error: "):
                print(line, end="", flush=True)
        ended = process.wait()
    except BaseException as error:  # whatever ends this call ends the command: nobody would know that it trains on
        # It may have the terminal's already, and counts one. Not a process group of its own: a closed terminal or a
        # kill of the caller's group would leave it running. If `print` failed, as on a closed terminal, a training
        # saves itself.
        asked = isinstance(error, KeyboardInterrupt)
        process.send_signal(signal.SIGINT if asked else signal.SIGTERM)
        rest, _ = process.communicate()
        if asked:
            print(rest, end="", flush=True)
        raise
    if ended == 0 or ended in incomplete:
        return
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if ended == 2:
        raise UserError("; ".join(faults) or "\n".join(lines[-3:]))
    raise RuntimeError("\n".join([f"dapo_lit.{name} ended with exit code {ended}", *(faults or lines[-20:])]))
