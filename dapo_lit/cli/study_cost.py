"""What the runs of a study take, from a few steps of one of its arms: each arm is billed by itself, start-up included.

Dynamic sampling is what arms differ by in cost: it generates groups until enough are mixed, and the probe says how many
are. Evaluations are billed by their completions, at the rate of those of the probe.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ablations.files.atomic import write_text
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_record
from ablations.techniques import step_mean
from ablations.texts import json_tree, read_bytes
from dapo_lit.config import Config
from dapo_lit.rollout.dynamic_sampling import CollectionRules, groups_in_flight

FILE = "estimate.json"
"""In the folder of a study: what `ablate` promised of it, and what its runs have used."""


@dataclass(frozen=True)
class RunCost:
    """One run of an arm."""

    seconds: float
    tokens: float
    """Generated in its steps."""


def run_cost(config: Config, rows: Sequence[Mapping[str, Any]], start_s: float, dynamic_sampling: bool) -> RunCost:
    """A run of an arm, with or without dynamic sampling.

    config, rows: of the probe, but with the steps and evaluations of the study.
    start_s: what the probe took besides its steps.
    """
    algorithm, evaluation, steps = config.algorithm, config.evaluation, config.budget.steps
    seconds, tokens = (rows[-1][key] / rows[-1]["step"] for key in ("wall_s", "tokens_generated"))
    generate_s, groups = (step_mean(rows, key) or 0.0 for key in ("time/generate_s", "sampling/groups_generated"))
    more = 1.0
    if dynamic_sampling != algorithm.techniques.dynamic_sampling and groups:
        wanted = algorithm.num_prompts
        if dynamic_sampling:
            mixed = step_mean(rows, "rollout/groups_mixed_frac") or 0.0
            most = algorithm.dynamic_sampling.max_rounds * wanted
            wanted = min(most, groups_in_flight(wanted, mixed, CollectionRules.margin)) if mixed else most
        more = wanted / groups
    evaluations = 1 + (steps - 1) // evaluation.every if evaluation.every else 1  # but for the last
    # Problems of a file are held out by its own file only.
    held_out = config.task.num_heldout if config.task.eval_path or not config.task.path else 0
    answers = held_out * (evaluations * evaluation.samples + (evaluation.final_samples or evaluation.samples))
    an_answer = generate_s / (groups * algorithm.samples_per_prompt) if groups else 0.0
    of_a_step = seconds + generate_s * (more - 1)
    return RunCost(start_s + steps * of_a_step + answers * an_answer, steps * tokens * more)


def promise(study: Path, estimate: Mapping[str, Any]) -> None:
    """Keeps what was promised before the first run of a study; a later promise does not replace it."""
    if not (study / FILE).exists():
        study.mkdir(parents=True, exist_ok=True)
        write_text(study / FILE, json.dumps({"promised": estimate}, indent=1) + "\n")


def used(runs: Iterable[Path]) -> RunCost:
    """The sum over runs that have ended; of one that was resumed the steps only, as nobody knows how long it paused."""
    seconds = tokens = 0.0
    for run in runs:
        record, last = read_record(run), read_metrics(run).rows[-1]
        start, end = (datetime.fromisoformat(record[key]) for key in ("started_at", "updated_at"))
        seconds += last["wall_s"] if record.get("resumed_at") else (end - start).total_seconds()
        tokens += last["tokens_generated"]
    return RunCost(seconds, tokens)


def promised_against_used(study: Path) -> str | None:
    """A sentence on the runs that have ended, kept in the study's folder too; None without a promise or a run."""
    ended = [done.parent for done in study.glob("*/seed_*/DONE.json")]
    if not ended or not (study / FILE).is_file():
        return None
    kept = json_tree(read_bytes(study / FILE), study / FILE)
    # Arms have as many runs each, unless some failed.
    promised = {
        key: sum(kept["promised"]["runs"][run.parent.name][key] for run in ended) for key in ("seconds", "tokens")
    }
    found = used(ended)
    measured = {"runs": len(ended), "seconds": found.seconds, "tokens": found.tokens}
    write_text(study / FILE, json.dumps(kept | {"promised_of_these": promised, "used": measured}, indent=1) + "\n")
    return (
        f"estimate  of {len(ended)} runs: {promised['tokens']:,.0f} tokens and {promised['seconds']:,.0f} s promised, "
        f"{found.tokens:,.0f} tokens and {found.seconds:,.0f} s used"
    )
