"""The problems that a run trains on and holds out, and a report of what was dropped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dapo_lit.config import Config, ConfigError
from dapo_lit.config.sections import Task
from dapo_lit.data.problem import Problem
from dapo_lit.data.selection import SelectionReport, select
from dapo_lit.data.sources import load_heldout, load_with_selection
from dapo_lit.tasks import arithmetic, chain_sum, four_sums, parity, reasoning_gym, string_programs


@dataclass(frozen=True)
class Problems:
    train: list[Problem]
    heldout: list[Problem]
    metrics: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """The metrics that the task adds to a step's: the share of responses for which the predicate holds."""
    selection: SelectionReport = field(default_factory=SelectionReport)
    """The training problems that were dropped."""


def problems(config: Config) -> Problems:
    """The task's training and held-out problems; a file is read and checked completely."""
    task = config.task
    found = _file_problems(task) if task.name == "file" else _generated_problems(task)
    difficulty = task.difficulty
    train = select(
        found.train,
        found.selection,
        drops_duplicates=task.deduplicate,
        evaluations={path: load_heldout(path, key="task.exclude_overlap_with") for path in task.exclude_overlap_with},
        difficulty=None if difficulty is None else (difficulty.key, difficulty.low, difficulty.high),
        num_problems=task.num_problems,
    )
    return replace(found, train=train)


def _generated_problems(task: Task) -> Problems:
    try:
        match task.name:
            case "chain_sum":
                sums = chain_sum.Sums(**task.options)
                return Problems(
                    chain_sum.train_problems(task.num_problems or 20_000, seed=0, sums=sums),
                    chain_sum.held_out_problems(task.num_heldout, sums=sums),
                    {"task/steps_frac": chain_sum.has_written_steps},
                )
            case "parity":
                strings = parity.Strings(**task.options)
                return Problems(
                    parity.problems("train", task.num_problems or 4096, strings),
                    parity.problems("held_out", task.num_heldout, strings),
                    {"task/steps_frac": parity.has_written_steps},
                )
            case "arithmetic":
                return Problems(
                    arithmetic.arithmetic_problems("train", num_problems=task.num_problems, **task.options),
                    arithmetic.arithmetic_problems("held_out", num_problems=task.num_heldout, **task.options),
                )
            case "string_programs":
                programs = string_programs.Programs(**task.options)
                return Problems(
                    string_programs.problems(task.num_problems or 20_000, held_out=False, programs=programs),
                    string_programs.problems(task.num_heldout, held_out=True, programs=programs),
                    {"task/steps_frac": string_programs.has_written_steps},
                )
            case "reasoning_gym":
                return Problems(
                    *reasoning_gym.splits(str(task.dataset), task.num_problems or 2_000, task.num_heldout, task.options)
                )
            case _:
                if task.options:
                    raise ValueError("four_sums has no options")
                return Problems(four_sums.problems(), four_sums.problems())
    except (TypeError, ValueError) as error:
        options = ", ".join(f"{key}={value}" for key, value in task.options.items())
        raise ConfigError(f"task.options ({options}): {error}" if options else str(error)) from None


def _file_problems(task: Task) -> Problems:
    columns = {str(field): name for field, name in (task.columns or {}).items()}
    train, selection = load_with_selection(str(task.path), "train", skip_bad_rows=task.skip_bad_rows, columns=columns)
    heldout = load_heldout(task.eval_path, columns, "task.eval_path")[: task.num_heldout] if task.eval_path else []
    return Problems(train, heldout, selection=selection)
