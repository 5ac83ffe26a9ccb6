"""The data that a page explores: the curves of all runs, their comparisons, and completions that were recorded."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from ablations.border import is_share
from ablations.errors import DamagedError
from ablations.figures.style import Look, contrast_looks, contrast_name, looks, short
from ablations.files.tables import read_table
from ablations.metrics import METRICS
from ablations.read.outcomes import WORDS, bases, in_words, unit
from ablations.read.run import AXES
from ablations.read.runs import Run, Runs

if TYPE_CHECKING:  # a run's page has no contrasts
    from ablations.compare.contrasts import Contrast

FILES, FILE_BYTES, CHARACTERS, RESPONSE = 300, 50_000_000, 30_000, 4_000
"""A page takes so many files of completions, none larger, and so many characters of each file and each response."""
MOST_VALUES = 6_000_000
"""So many values of metrics in a page, which are some 15 MB; a browser reads them in seconds."""
SPOKEN = ("response", "turns", "observations")
COLUMNS = (
    "problem_id", "attempt", "sample_index", "prompt", "answer", "response", "extracted", "error", "correct",
    "truncated", "kept", "reward", "length_penalty", "reward_shaped", "advantage", "tokens", "ended_by", "turns",
    "observations",
)  # fmt: skip


def exploration(
    runs: Runs,
    metric: str,
    found: "Sequence[Contrast]" = (),
    family: str | None = None,
    live: bool = False,
    characters: int | None = None,
) -> dict[str, Any]:
    """The data that page.js draws.

    family: the comparisons that are shown at first.
    live: the page loads itself again, because its run goes on.
    characters: about so many of completions; None: as FILES and CHARACTERS say.
    """
    logged = runs.keys()
    keys = _that_fit([key for key in logged if key not in AXES], metric, sum(len(run.metrics) for run in runs))
    arm_looks, base_of, styles = looks(runs.arms), bases(runs), contrast_looks(found)
    return {
        "metric": metric,
        "panels": panels(keys, (runs.runs[0].config.get("task") or {}).get("label")),
        "family": family,
        "live": live,
        "axes": AXES,
        "t": [float(stats.t.ppf(0.975, df)) for df in range(1, max(2, len(runs.seeds)))],
        "metrics": [
            {"key": key, "words": in_words(key), "unit": unit(key), "scale": 100 if is_share(key) else 1}
            | ({"definition": METRICS[key].definition} if key in METRICS else {})
            for key in keys
        ],
        "arms": [{"name": arm, "short": short(arm)} | _look(arm_looks[arm]) for arm in runs.arms],
        "comparisons": [
            {"name": contrast_name(one), "family": one.family, "weights": dict(one.weights)} | _look(styles[one.label])
            for one in found
        ],
        "runs": [_run(run, keys, base_of[run.seed]) for run in runs],
        "completions": completions(runs, characters),
    }


PANELS: Mapping[str, Mapping[str, str]] = {
    "Accuracy": {"eval/avg@": "held out", "rollout/accuracy": "training"},
    "Reward": {"rollout/reward_shaped": "with penalty", "rollout/reward": "without"},
    "Entropy": {"eval/entropy": "held out", "rollout/entropy": "training"},
    "Response length": {"eval/length_mean": "held out", "rollout/length_mean": "training"},
    "Clipped tokens": {"clip/high_frac": "upper bound", "clip/low_frac": "lower bound"},
    "Groups": {
        "rollout/groups_mixed_frac": "mixed", "rollout/groups_all_correct_frac": "all right",
        "rollout/groups_all_wrong_frac": "all wrong",
    },
}  # fmt: skip
"""What a run's page shows at once: by the title of a panel its metrics, and their names there. Metrics of a user's file
come after them, in the panels that they name."""


def panels(keys: Sequence[str], label: str | None) -> list[dict[str, Any]]:
    """The panels with the metrics that were logged; `eval/` is the held-out problems', which the task's label names."""
    wanted = {title: dict(curves) for title, curves in PANELS.items()}
    for key in keys:
        if key in METRICS and (title := METRICS[key].panel):
            wanted.setdefault(title, {})[key] = METRICS[key].words

    def logged(curve: str) -> str | None:
        if not curve.startswith("eval/"):
            return curve if curve in keys else None
        start = curve.replace("eval/", f"eval/{label}/")
        return next((key for key in keys if key.startswith(start)), None)

    found = {
        title: [[name, words] for curve, words in curves.items() if (name := logged(curve))]
        for title, curves in wanted.items()
    }
    return [{"title": title, "curves": curves} for title, curves in found.items() if curves]


def _that_fit(keys: Sequence[str], metric: str, rows: int) -> list[str]:
    """The metrics of all runs that a page has room for, in the order of `keys`; all of them but in very long runs."""
    room = max(1, MOST_VALUES // max(1, rows))
    if len(keys) <= room:
        return list(keys)
    first = [metric, *(key for key in keys if key.startswith(("eval/", "own/")) or key in WORDS), *keys]
    kept = set(list(dict.fromkeys(first))[:room])
    return [key for key in keys if key in kept]


def _look(look: Look) -> dict[str, Any]:
    return {"colour": look.colour, "dash": look.dash}


def _run(run: Run, keys: Sequence[str], base: str) -> dict[str, Any]:
    values = {key: _six_digits(run.columns[key]) for key in dict.fromkeys([*AXES, *keys]) if key in run.columns}
    spoilt = [key for key in keys if run.has_nonfinite(key)]
    return {
        "arm": run.arm, "seed": run.seed, "base": base, "values": {"step": run.metrics.index.tolist()} | values,
        "spoilt": spoilt,
    }  # fmt: skip


def _six_digits(column: np.ndarray) -> list[float | None]:
    values = column.astype(float)
    # Counts, and the many metrics that are 0 in all rows: a page of a study has a million values.
    if np.all((values == np.rint(values)) & (np.abs(values) < 1e6)):
        return values.tolist()
    return [float(f"{value:.6g}") if value == value else None for value in values.tolist()]


def completions(runs: Runs, most: int | None = None) -> list[dict[str, Any]]:
    """Recorded completions: a table a run and step, at equal distances; together of about `most` characters."""
    files = [(run, file) for run in runs for file in sorted(run.folder.glob("rollouts/step_*.parquet"))]
    chosen = files
    while len(chosen) > FILES or (most and len(chosen) > 1 and sum(_characters(file) for _, file in chosen) > most):
        chosen = chosen[::2]  # halved: a page that is written again chooses the same files, and reads each once
    if chosen and most and chosen[-1] is not files[-1]:
        chosen = [*chosen, files[-1]]
    return [
        {"arm": run.arm, "seed": run.seed, "step": int(file.stem.removeprefix("step_"))} | _table(file)
        for run, file in chosen
    ]


@cache  # a page that is rewritten while its run goes on reads each file once
def _table(file: Path) -> dict[str, Any]:
    """The first rows of a file, in the order of its groups."""
    try:
        table = read_table(file) if file.stat().st_size <= FILE_BYTES else None
    except DamagedError:
        table = None
    if table is None:
        return {"of": None, "rows": []}
    if "response_ids" in table:
        table["tokens"] = table["response_ids"].map(len)
    table = table[[name for name in COLUMNS if name in table]].astype(object)
    every = table.where(table.notna(), None).to_dict("records")
    rows: list[dict[Any, Any]] = []
    characters = 0
    for row in every:
        pieces = [str(row["response"])] if row.get("turns") is None else _by_turns(row)
        pieces = [_shortened(piece, max(1, RESPONSE // len(pieces))) for piece in pieces]
        characters += sum(map(len, pieces))
        if rows and characters > CHARACTERS:
            break
        rows.append({key: value for key, value in row.items() if key not in SPOKEN} | {"response": pieces})
    return {"of": len(every), "rows": rows}


@cache
def _characters(file: Path) -> int:
    """Characters of a file's rows on a page."""
    return len(json.dumps(_table(file)["rows"], default=str))


def _by_turns(row: Mapping[Any, Any]) -> list[str]:
    """What an episode says: a turn of the policy, what its environment says to that, and so on."""
    between = [*map(str, row["observations"]), ""]
    return [str(text) for pair in zip(row["turns"], between, strict=False) for text in pair][:-1]


def _shortened(text: str, most: int) -> str:
    # The answer is at its end.
    return text if len(text) <= most else f"{text[: most // 2]} […] {text[-most // 2 :]}"
