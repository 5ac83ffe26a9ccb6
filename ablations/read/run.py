"""One run as it was read: its record, config and metrics, and what is odd about its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablations.border import TEXT, TRUTH, WHOLE, checked, checked_table
from ablations.errors import UserError
from ablations.files.layout import EVALUATIONS, RECORD
from ablations.files.manifest import RESTORE
from ablations.files.tables import read_table
from ablations.metrics import Metric, register_metrics
from ablations.techniques import REGISTER, Technique
from ablations.trainer import configs

AXES = {
    "step": "rollout step",
    "gradient_step": "gradient step",
    "tokens_generated": "generated tokens",
    "tokens_trained": "trained tokens",
    "wall_s": "wall time (s)",
}
"""The five axes of budget, which every row of a run has."""

SAMPLE_KINDS = {"problem_id": TEXT, "sample_index": WHOLE, "correct": TRUTH}
"""What readers take of the samples of an evaluation."""
USABLE = ("finished", "solved", "exhausted")
"""Statuses of a run that ended by its own rules; with any other it has no result."""


class StudyError(UserError, ValueError):
    """Runs that cannot be read or may not be compared; the message says which and why."""


@dataclass(frozen=True, eq=False)
class Run:
    """One finished or unfinished run."""

    folder: Path
    study: str
    arm: str
    seed: int
    status: str
    record: Mapping[str, Any]
    """run.json."""
    config: Mapping[str, Any]
    """config.yaml, resolved."""
    metrics: pd.DataFrame
    """One row a step, sorted, index `step`; a metric that a row lacks is NaN."""
    faults: tuple[str, ...] = ()
    """Faults of the files: torn or doubled rows, missing steps, values that are not finite."""
    not_finite: frozenset[str] = frozenset()
    """Metrics that were NaN or infinite at some step."""
    overrides: tuple[str, ...] = ()
    """The command line that started it, without the command."""
    own_techniques: Mapping[str, Technique] = field(default_factory=dict)
    """The techniques in files of the user's that are on, by path, as run.json describes them."""
    packed_samples: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """The last evaluation of each benchmark, where the run was read from a packed table."""

    @classmethod
    def of(cls, folder: Path, record: Mapping[str, Any], config: Mapping[str, Any], **read: Any) -> "Run":
        """A run whose run.json names it; `read`: the other fields."""
        names: dict[str, Any] = {"study": record.get("study", ""), "seed": record["seed"]}
        names |= {"arm": record["arm"], "status": record.get("status", "unknown")}
        place, remedy = folder / RECORD, f"; {RESTORE}"
        # Now, not where a page asks: a record that does not describe them is refused as a whole.
        register_metrics(checked(record.get("metrics", []), tuple[Metric, ...], f"{place}, metrics", remedy=remedy))
        own = checked(record.get("own_techniques", {}), dict[str, Technique], f"{place}, own_techniques", remedy=remedy)
        return cls(folder, **names, record=record, config=config, own_techniques=own, **read)

    @property
    def name(self) -> str:
        return f"{self.arm}/seed_{self.seed}"

    @property
    def base(self) -> str:
        """The base policy that the run started from: its seed (its own where the config does not say) with the hash of
        its weights, because machines of other kinds make other weights; the path of a policy of your own. A record
        without a hash may name it."""
        if known := (self.config.get("policy") or {}).get("path") or self.record.get("base"):
            return str(known)
        number, weights = (self.config.get("task") or {}).get("base_seed", self.seed), self.record.get("base_weights")
        return f"{number} ({weights[:8]})" if weights else str(number)

    @property
    def usable(self) -> bool:
        return self.status in USABLE and len(self.metrics) > 0

    @property
    def techniques(self) -> dict[str, bool]:
        """Every registered switch; those that the run did not know are off. Empty where nothing was recorded."""
        known = self.recorded_techniques
        return {switch: bool(known.get(switch)) for switch in REGISTER} if known else {}

    @property
    def recorded_techniques(self) -> dict[str, bool]:
        """The switches that the run's config names."""
        return dict((self.config.get("algorithm") or {}).get("techniques") or self.record.get("techniques") or {})

    @property
    def on(self) -> dict[str, Technique]:
        """The techniques that are on."""
        return {switch: REGISTER[switch] for switch, on in self.techniques.items() if on} | {**self.own_techniques}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what the run learns and when it ends; empty if it has none."""
        return configs().identity(self.config) if self.config else {}

    def series(self, key: str) -> pd.Series:
        """A metric by step, without the steps at which it was not logged; empty if it never was."""
        if key not in self._series:
            steps, values = self.points(key)
            self._series[key] = pd.Series(values, index=pd.Index(steps, name=self.metrics.index.name), name=key)
        return self._series[key]

    def points(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The steps and values of `series`, both [points].

        Comparisons read these: a report of a large study asks tens of thousands of times, and a `Series` costs more
        than the arithmetic on it.
        """
        if key not in self._points:
            steps, values = self.metrics.index.to_numpy(), self.columns.get(key)
            if values is None:
                self._points[key] = steps[:0], np.empty(0)
            else:
                # `columns` has numbers only, and pd.isna costs more than the rest of a comparison
                logged = ~np.isnan(values)
                self._points[key] = (steps, values) if logged.all() else (steps[logged], values[logged])
        return self._points[key]

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Every metric with a value for each row [steps], NaN where a row lacks it; what is no number is NaN."""
        table, kinds = self.metrics, self.metrics.dtypes.to_numpy()
        if not all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in kinds):
            table = table.apply(pd.to_numeric, errors="coerce")
            kinds = table.dtypes.to_numpy()
        names, found = list(map(str, table.columns)), dict[str, np.ndarray]()
        for kind in dict.fromkeys(kinds):  # all of a kind at once: a `Series` for each takes as long as the comparisons
            places = [place for place, other in enumerate(kinds) if other == kind]
            values = table.iloc[:, places].to_numpy().T
            found |= {names[place]: column for place, column in zip(places, values, strict=True)}
        return found

    @cached_property
    def _series(self) -> dict[str, pd.Series]:
        return {}

    @cached_property
    def outcomes(self) -> dict[str, float | None]:
        """Of the metrics that comparisons have asked for; `read.outcomes.outcome` fills it."""
        return {}

    @cached_property
    def _points(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def first_repeat(self) -> float:
        """First step whose rollouts need more problems than there are; withdrawn groups are asked again, not new."""
        problems = (self.record.get("problems") or {}).get("train")
        groups = self.series("sampling/groups_generated")
        if not problems or groups.empty:
            return float("inf")
        visited = (groups - self.series("sampling/groups_surplus").reindex(groups.index, fill_value=0)).cumsum()
        return float(min(visited.index[visited > problems], default=float("inf")))

    def has_nonfinite(self, key: str) -> bool:
        """True if a metric was NaN or infinite at some step; such a run is listed as unhealthy and not averaged."""
        return key in self.not_finite

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        """Benchmarks whose samples were kept."""
        files = {file.parent.name for file in self.folder.glob("eval/*/step_*.parquet")}
        return tuple(sorted(files | self.packed_samples.keys()))

    def evaluation(self, benchmark: str) -> pd.DataFrame:
        """Samples of the last evaluation (problem_id, sample_index, correct)."""
        if benchmark in self.packed_samples:
            return self.packed_samples[benchmark]
        file = max((self.folder / EVALUATIONS / benchmark).glob("step_*.parquet"))
        return checked_table(read_table(file), SAMPLE_KINDS, file)
