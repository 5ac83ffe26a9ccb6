"""The second half of a report, whether to believe it: health, missing runs, power, versions, commands."""

import shlex

from dapo_lit.study.compare.decision import pairs_needed
from dapo_lit.study.compare.statistics import seeds_needed, smallest_effect
from dapo_lit.study.read.base_policies import weights_by_base
from dapo_lit.study.read.guard import code_versions, config_differences, decides
from dapo_lit.study.read.health import findings
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.runs import Runs
from dapo_lit.study.report.document import Part, Table, bullets
from dapo_lit.study.report.results import Results


def health_section(results: Results) -> list[Part]:
    """Section 5: runs that are missing or unhealthy, with the reason, and which techniques can act at this scale."""
    parts: list[Part] = ["## 5. Runs that are missing or unhealthy"]
    rows = [[f"{arm}/seed_{seed}", "missing", reason] for (arm, seed), reason in results.missing.items()]
    rows += [[folder, "unreadable", reason] for folder, reason in results.runs.unreadable.items()]
    for run in results.runs.usable:
        used = "not averaged" if run.spoilt(results.metric) else "kept"
        rows += [[run.name, used, finding] for finding in findings(run)]
    if rows:
        caption = "Unhealthy runs stay in every average unless marked; missing ones have no pair at their seed."
        parts.append(Table("health", caption, ["run", "", "reason"], rows))
    else:
        parts.append("None: every run finished and no check found anything.")
    counts = {arm: len(seeds) for arm, seeds in results.scores.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{arm} {count}" for arm, count in counts.items())
        parts.append(f"Arms have unequal numbers of seeds ({listed}); comparisons use the seeds that both arms have.")
    words = {True: "exercised", False: "not exercised", None: "unknown"}
    rows = [[technique, words[state], text] for technique, (state, text) in results.act.items()]
    caption = "Whether each technique can act in this regime, averaged over the runs without it."
    return [*parts, Table("exercised", caption, ["technique", "", "measured"], rows)]


def power_section(results: Results) -> list[Part]:
    """Section 6: the smallest effect that this many seeds can show, and the seeds that the observed spread asks for."""
    key, rows = results.metric, []
    shown = [(r, r.estimate) for r in results.of(results.family) if r.estimate is not None]
    if not shown:
        return ["## 6. Power", "Nothing is compared, so there is no power to state."]
    for result, estimate in shown:
        if estimate.sd:
            least, needed = smallest_effect(estimate.n), seeds_needed(estimate.mean / estimate.sd)
            size = "–" if least is None else amount(key, least * estimate.sd)
            cells = [amount(key, estimate.sd), size, str(needed) if needed else "more than 500"]
        else:
            cells = ["–", "–", "one seed: the spread is unknown" if estimate.n == 1 else "no spread over seeds"]
        rows.append([result.contrast.label, str(estimate.n), *cells])
    caption = (
        f"Effects on {key}{f' in {unit(key)}' if unit(key) else ''} by the paired t-test at 5 %, power 80 %, taking "
        "the observed spread of paired differences as true. The last column is what the observed effect would need."
    )
    columns = ["comparison", "seeds", "sd of differences", "smallest effect found", "seeds for the observed effect"]
    seeds, most = pairs_needed(len(shown), results.alpha), max(len(r.seeds) for r, _ in shown)
    family = "1 comparison" if len(shown) == 1 else f"{len(shown)} comparisons"
    exact = (
        f"The exact test adjusted over {family} needs at least {seeds} seeds to reach {results.alpha:g}; this report "
        f"has at most {most} paired seeds per comparison."
    )
    return ["## 6. Power", Table("power", caption, columns, rows), exact]


def versions_section(results: Results) -> list[Part]:
    """Section 7: what differs between arms, and the code and machines that made the runs."""
    parts: list[Part] = ["## 7. Config and code"]
    if results.warnings:
        parts += ["**Compared in spite of:**", bullets(results.warnings)]
    usable, differing = results.runs.usable, config_differences(results.runs.usable)
    if differing:
        rows = [[arm, *(str(values.get(arm, "–")).lower() for values in differing.values())] for arm in usable.arms]
        columns = ["arm", *(key.removeprefix("algorithm.").removeprefix("techniques.") for key in differing)]
        parts.append(Table("config", "Config keys in which arms differ at the same seed.", columns, rows))
    else:
        parts.append("The arms do not differ in any config key.")
    rows = []
    for code, names in code_versions(usable).items():
        made = [run for run in usable if run.name in names]
        first = made[0].record
        dirty = f", uncommitted changes {str(first['git_dirty_hash'])[:12]}" if first.get("git_dirty_hash") else ""
        versions = ", ".join(f"{k} {v}" for k, v in (first.get("versions") or {}).items())
        hardware = ", ".join(sorted({str(run.record.get("hardware")) for run in made}))
        rows.append([code[:12], str(len(made)), f"{str(first.get('git_commit'))[:12]}{dirty}", versions, hardware])
    bases = [list(row) for row in weights_by_base(usable).items()]
    caption = "Base policies that the runs started from, by task.base_seed, and the hash of their weights."
    parts.append(Table("base_policies", caption, ["base policy", "weights"], bases))
    caption = "The code that made the runs: one row, unless a comparison across versions was asked for."
    return [*parts, Table("code", caption, ["code", "runs", "commit", "versions", "hardware"], rows)]


def registration(results: Results, late: str | None) -> list[Part]:
    """What was registered before the first run, and what was edited since."""
    plan, lines = results.plan, []
    if plan:
        promised = {
            "primary metric": plan.metric,
            "reference": plan.reference,
            "seeds": ", ".join(map(str, plan.seeds)) or None,
            "alpha": plan.alpha,
            "event": plan.event,
        }
        lines.append("Registered: " + "; ".join(f"{key} {value}" for key, value in promised.items() if value) + ".")
    if late:
        lines.append(f"**Note:** {late}.")
    lines += [f"**Edited after registration:** {edit}." for edit in results.edits]
    return [bullets(lines)] if lines else []


def commands_section(results: Results, command: str) -> list[Part]:
    """Section 8: how to make the runs and this report again."""
    return ["## 8. Commands", f"```\n{train_command(results.runs)}\n{command}\n```"]


def train_command(runs: Runs) -> str:
    """The multirun that makes these runs, from the overrides that each was started with.

    A key that was given several values is swept over; a study brings its arms itself. Keys that only say where runs are
    kept and how fast they are made are left out.
    """
    values: dict[str, list[str]] = {}
    for run in runs:
        for override in run.overrides:
            key, _, value = override.partition("=")
            if decides(key) and value not in values.setdefault(key, []):
                values[key].append(value)
    values["seed"] = [str(seed) for seed in runs.seeds]
    overrides = [f"{key}={','.join(given)}" for key, given in values.items() if given]
    return " ".join(["python -m dapo_lit.train -m", *map(shlex.quote, overrides)])
