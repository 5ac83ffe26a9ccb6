"""A finished study as a report (HTML, JSON, figures as SVG), and what a study prints once its last cell has ended."""

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ablations.command_text import command
from ablations.compare.calibration import CALIBRATE, Difference, calibrate
from ablations.compare.effects import registered_effects
from ablations.compare.statistics import pairs_needed, per_base, t_interval
from ablations.figures.curve_figures import seeds_text
from ablations.figures.effect_figures import effects_figure, interactions_figure
from ablations.figures.style import Drawing
from ablations.files.atomic import write_text
from ablations.files.layout import kept_states, playable_page
from ablations.read.calibrations import FILE, read_calibration
from ablations.read.health import findings, learned
from ablations.read.outcomes import amount, bases, below_base, outcome, primary_metric, unit, with_interval
from ablations.read.registration import Plan, doubts, last_plan, read_plan
from ablations.read.runs import Runs, StudyError, load, study_folder
from ablations.report.document import Document, Part, Table, bullets, in_terminal, is_empty, switch_buttons
from ablations.report.explore import exploration
from ablations.report.fork_page import close_fork
from ablations.report.html import write_html
from ablations.report.page_one import closing, page_one, verdicts
from ablations.report.results import Results, analyse

SCHEMA = "dapo_lit/report/1"
OF_SEEDS = ("seeds", "bases", "differences")
"""Fields of a comparison's values at each seed."""


def make_report(
    folders: Sequence[Path], out: Path, typed: str, metric: str | None = None, notes: Sequence[str] = ()
) -> tuple[Results, list[str]]:
    """Reads a study, writes its report into `out`, and returns the results and the first page as lines of text.

    metric: the primary metric of runs without a plan; None: held-out accuracy, else the training accuracy.
    notes: sentences for the head of the page.
    """
    runs, home = load(*folders), study_folder(folders[0])
    (plan, edits), last = read_plan(home), last_plan(home)
    analysed = analyse(runs, plan, tuple(edits), metric, last.seeds if last else ())
    results = replace(analysed, calibration=read_calibration(runs, home))
    lead = page_one(results)
    document = build(results, lead, typed, out, [*notes, *doubts(home, runs.runs)])
    (out / "figures").mkdir(parents=True, exist_ok=True)
    tables = {}
    for part in document.parts:
        if isinstance(part, Table):
            tables[part.name] = [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        elif isinstance(part, Drawing):
            write_text(out / "figures" / f"{part.name}.svg", part.svg)
    written = as_json(results) | {"tables": tables}
    write_text(out / "report.json", json.dumps(written, indent=1, default=str) + "\n")
    write_html(document, out / "report.html")
    return results, in_terminal(lead[1:])


def build(results: Results, lead: Sequence[Part], typed: str, out: Path, notes: Sequence[str] = ()) -> Document:
    """The report's parts in their order; `lead` is its first page, `out` the folder that the page is for."""
    usable = results.runs.usable
    first = "".join(f"{text}\n\n" for text in verdicts(results)) if results.effects else ""
    first += (
        f"Primary metric `{results.metric}`, {_budget_text(usable, results.plan)}, {seeds_text(usable, usable.arms)}. "
        f"Arms are compared on the mean of a run's last checkpoints, paired by seed.{missing_text(results.missing)}"
    )
    parts = [first, bullets(notes), *lead, *arms_section(results), *runs_section(results), *steps_section(usable, out)]
    kept = [part for part in [*parts, f"This report: `{typed}`"] if not is_empty(part)]
    title = f"Study {results.runs.studies[0]}: {len(usable)} runs of {len(usable.arms)} arms"
    found = [effect.contrast for effect in results.comparisons]
    return Document(title, kept, exploration(usable, results.metric, found, results.family))


def _budget_text(runs: Runs, plan: Plan | None) -> str:
    """The last step of the runs, and the limits that were registered."""
    ends = sorted({int(run.metrics.index.max()) for run in runs})
    reached = f"{ends[0]} steps" if len(ends) == 1 else f"{ends[0]} to {ends[-1]} steps"
    limits: Mapping[str, float | None] = (plan.budget or {}) if plan else {}
    named = ", ".join(f"{key} {value:g}" for key, value in limits.items() if value is not None)
    return f"at {reached}" + (f" (registered budget: {named})" if named else "")


def missing_text(missing: Collection[tuple[str, int]]) -> str:
    """The cells without a usable run, arm by arm; empty if there is none.

    >>> missing_text([("dapo", 3), ("dapo", 4)])
    ' 2 cells that were asked for have no usable run: dapo at seeds 3, 4.'
    """
    if not missing:
        return ""
    arms = {arm: [str(seed) for other, seed in missing if other == arm] for arm, _ in missing}
    named = "; ".join(f"{arm} at seeds {', '.join(seeds)}" for arm, seeds in arms.items())
    return f" {len(missing)} cells that were asked for have no usable run: {named}."


def arms_section(results: Results) -> list[Part]:
    """Section 2: the outcome of every arm, the effects by seed and by base policy, interactions."""
    key = results.metric
    parts: list[Part] = ["## 2. Outcomes", _by_arm(results)]
    for family in dict.fromkeys(r.contrast.family for r in results.comparisons):
        if family != "interactions" and len(results.of(family)) > 1:
            drawing = effects_figure(results.comparisons, key, family)
            parts += [drawing] if drawing else []
    heat = interactions_figure(results.comparisons, key)
    return [*parts, *([heat] if heat else []), *_by_base(results)]


def _by_arm(results: Results) -> Table:
    key, base_of, rows = results.metric, bases(results.runs), []
    for arm in results.runs.usable.arms:
        if seeds := results.scores.get(arm):
            mean = t_interval(per_base([*seeds.values()], [base_of[seed] for seed in seeds]))
            ends = [amount(key, end) for end in (mean.mean, mean.low, mean.high)]
            fell = [below for run in results.runs.usable.of(arm) if (below := below_base(run, key)) is not None]
            rows.append([arm, str(len(seeds)), str(mean.n), *ends, f"{sum(fell)} of {len(fell)}" if fell else "–"])
    unit = "base policies" if len(set(base_of.values())) > 1 else "seeds"
    caption = (
        f"{key}: mean over runs of the last checkpoints, with its 95 % t-interval over {unit}, n of them. Below its "
        "base: runs that end below what their base policy scored before training; a description, not decided."
    )
    return Table("outcomes", caption, ["arm", "runs", "n", "mean", "low", "high", "below its base"], rows)


def _by_base(results: Results) -> list[Part]:
    """Each comparison of the family at each base policy, where bases have several seeds."""
    shown = [r for r in results.of(results.family) if 1 < len(r.by_base) < len(r.seeds)]
    if not shown:
        return []
    bases = sorted({base for r in shown for base in r.by_base}, key=lambda base: (len(base.split()[0]), base))
    rows = [[r.contrast.label, *(amount(results.metric, r.by_base.get(b), signed=True) for b in bases)] for r in shown]
    caption = f"Mean difference in {results.metric} at each base policy; the bases are n."
    return [Table("by_base", caption, ["comparison", *(f"base {base}" for base in bases)], rows)]


def runs_section(results: Results) -> list[Part]:
    """Section 3: the registration and what was edited since; missing and unhealthy runs."""
    plan, lines = results.plan, []
    if plan:
        promised: dict[str, object] = {"primary metric": plan.metric, "reference": plan.reference}
        promised |= {"seeds": ", ".join(map(str, plan.seeds)), "alpha": f"{plan.alpha}"}
        lines.append("Registered: " + "; ".join(f"{key} {value}" for key, value in promised.items() if value) + ".")
    lines += [f"**Edited after registration:** {edit}." for edit in results.edits]
    rows = [[f"{arm}/seed_{seed}", "missing", reason] for (arm, seed), reason in results.missing.items()]
    rows += [[folder, "unreadable", reason] for folder, reason in results.runs.unreadable.items()]
    for run in results.runs.usable:
        used = "not averaged" if run.has_nonfinite(results.metric) else "kept"
        rows += [[run.name, used, finding] for finding in findings(run)]
    caption = "Unhealthy runs stay in every average unless marked; missing ones have no pair at their seed."
    health: Part = Table("health", caption, ["run", "", "reason"], rows) if rows else "No run is missing or unhealthy."
    return ["## 3. Registration and runs", *([bullets(lines)] if lines else []), health]


STEPS = 6
"""Recorded steps that a report names."""


def steps_section(runs: Runs, out: Path) -> list[Part]:
    """Section 4: the recorded steps of the runs as pages to play with, or the commands that make them; [] without any.

    Packed cells have no folder of their own, and no states.
    """
    kept = [(run, step) for run in runs for step in kept_states(run.folder)][:STEPS]
    if not kept:
        return []
    parts: list[Part] = ["## 4. Steps to play with"]
    for run, step in kept:
        page = playable_page(run.folder, step)
        if page.is_file():
            # Names of folders are data of a run: quoted, and never the start of an address.
            address = quote(Path(os.path.relpath(page, out)).as_posix())
            parts += [f"{run.name}, step {step}, under the other position of", switch_buttons(address)]
    if missing := [(run, step) for run, step in kept if not playable_page(run.folder, step).is_file()]:
        made = [command("replay", str(run.folder), f"step={step}", "--html") for run, step in missing]
        text = "A page of a recorded step, five switches and every token, is made by"
        parts.append("\n".join([text, "", "```", *made, "```"]))
    return parts


def as_json(results: Results) -> dict[str, Any]:
    """Content of report.json besides the tables (schemas/report.json): numbers in full, by seed and by base policy."""
    usable = results.runs.usable
    found = {
        "schema": SCHEMA,
        "study": results.runs.studies[0],
        "metric": results.metric,
        "arms": list(usable.arms),
        "outcomes": [
            {"arm": run.arm, "seed": run.seed, "base": run.base, "last": outcome(run, results.metric)} for run in usable
        ],
        "comparisons": [
            {key: value for key, value in asdict(effect).items() if key in ("contrast", "estimate", "p", *OF_SEEDS)}
            for effect in results.comparisons
        ],
        "effects": [
            {key: value for key, value in asdict(effect).items() if key not in OF_SEEDS} | {"decided": effect.decided}
            for effect in results.effects
        ],
        "exercised": {
            technique: {"can_act": state, "measured": text} for technique, (state, text) in results.act.items()
        },
    }
    return dict(_without_nan(found))


def _without_nan(tree: Any) -> Any:
    """JSON has no NaN and no infinity: an estimate without values, an interval without an end."""
    if isinstance(tree, Mapping):
        return {key: _without_nan(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def close_calibration(folders: Sequence[Path]) -> str:
    """Writes calibration.json into the first folder; returns its answers and where it is."""
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    regime = next((run.config["regime"] for run in runs if run.config.get("regime")), None)
    if regime is None:
        raise StudyError("these runs belong to no regime (+regime=NAME)")
    found = calibrate(runs, regime, primary_metric(runs, plan.metric if plan else None))
    write_text(folders[0] / FILE, json.dumps(found, indent=1) + "\n")
    return "\n".join([*_answers(found), f"calibration: {folders[0] / FILE}"])


def _answers(found: Mapping[str, Any]) -> list[str]:
    """One sentence a technique, the placebo on each outcome, and the effects that a number of pairs can show."""
    key, lines, placebo = found["metric"], [], {}
    for row in found["techniques"]:
        text = f"{row['technique']}: {'sensitive' if row['admitted'] else 'not sensitive'}: {row['reason']}"
        text += "".join(f"; {e['arms'][0]} minus {e['arms'][1]}: {difference_text(e)}" for e in row["doses"])
        if row["accuracy_reason"] is not None:
            text += f"; by {key}: {row['accuracy_reason'] or 'yes'}"
        lines.append(text + (f" ({difference_text(row['accuracy'])})" if row["accuracy"] else ""))
        if row["placebo"]:
            placebo[row["placebo"]["outcome"]] = row["placebo"]
    lines += [f"placebo: {difference_text(e)}" for e in placebo.values()]
    if found["sd"] is not None:
        least = ", ".join(f"{n} pairs {amount(key, value)}" for n, value in found["smallest"].items())
        lines.append(
            f"{key}: a paired difference has a standard deviation of {amount(key, found['sd'])} {unit(key)} between "
            f"bases. Smallest effect found with a power of 80 % (paired t-test at 5 %): {least}. An effect of 2 points "
            f"needs {found['seeds_for_two_points'] or 'more than 500'} pairs; one comparison can be decided from "
            f"{pairs_needed(1)} on."
        )
    return lines


def difference_text(row: Difference) -> str:
    """`task/steps_frac +32.0 [25.1, 38.9] points, d = 4.1, n = 6`."""
    key = row["outcome"]
    text = f"{key} {with_interval(key, row['mean'], row['low'], row['high'])} {unit(key)}".rstrip()
    return text + (f", d = {row['d']:.1f}" if row["d"] is not None else "") + f", n = {row['n']}"


def close(study: str, folders: Sequence[Path], typed: str) -> str:
    """Writes a report or a calibration into the first folder; returns its findings as text."""
    if study == CALIBRATE:
        return close_calibration(folders)
    if study == "fork":
        return close_fork(folders[0])
    out = folders[0] / "report"
    results, _ = make_report(folders, out, typed)
    found = in_terminal(closing(results))
    if not any(learned(run) for run in results.runs.usable):
        raise StudyError(
            f"nothing was learned in any of the {len(results.runs.usable)} runs, no update had a gradient: every group "
            f"was all right or all wrong (docs/troubleshooting.md). report: {out / 'report.html'}"
        )
    missing = [f"{len(results.missing)} cells are missing; the findings are of those that have ended"]
    return "\n".join([*found, *(missing if results.missing else []), f"report: {out / 'report.html'}"])


def all_decided(folders: Sequence[Path]) -> bool:
    """True if the runs so far decide every registered comparison."""
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    if plan is None:
        return False
    found = registered_effects(runs, plan, plan.reference, primary_metric(runs, plan.metric))
    return bool(found) and all(effect.decided for effect in found)
