"""The second half of a report, whether to believe it: health, missing runs, power, versions, commands."""

import shlex

from dapo_lit.study.compare.statistics import seeds_for_exact, seeds_needed, smallest_effect
from dapo_lit.study.read.guard import code_versions, config_differences
from dapo_lit.study.read.health import findings
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.runs import Runs
from dapo_lit.study.report.document import Block, Bullets, Code, Heading, Prose, Table
from dapo_lit.study.report.results import Results


def health_section(results: Results) -> list[Block]:
    """Section 5: runs that are missing or unhealthy, with the reason, and what the regime exercises."""
    blocks: list[Block] = [Heading("5. Runs that are missing or unhealthy")]
    rows = []
    for (arm, seed), reason in results.missing.items():
        rows.append([f"{arm}/seed_{seed}", "missing", reason])
    for folder, reason in results.runs.unreadable.items():
        rows.append([folder, "unreadable", reason])
    for run in results.runs.usable:
        used = "not averaged" if run.spoilt(results.metric) else "kept"
        rows += [[run.name, used, finding] for finding in findings(run)]
    caption = "Unhealthy runs stay in every average unless marked; missing ones have no pair at their seed."
    if rows:
        blocks.append(Table("health", caption, ["run", "", "reason"], rows))
    else:
        blocks.append(Prose("None: every run finished and no check found anything."))
    counts = {arm: len(seeds) for arm, seeds in results.scores.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{arm} {count}" for arm, count in counts.items())
        blocks.append(
            Prose(f"Arms have unequal numbers of seeds ({listed}); comparisons use the seeds that both arms have.")
        )
    words = {True: "exercised", False: "not exercised", None: "cannot be told"}
    rows = [[technique, words[state], text] for technique, (state, text) in results.act.items()]
    caption = "Whether each technique can act in this regime, averaged over the runs without it."
    blocks.append(Table("exercised", caption, ["technique", "", "measured"], rows))
    return blocks


def power_section(results: Results) -> list[Block]:
    """Section 6: the smallest effect that this many seeds can show, and the seeds that the observed spread asks for."""
    blocks: list[Block] = [Heading("6. Power")]
    shown = [r for r in results.of(results.family) if r.estimate is not None]
    rows = []
    for result in shown:
        estimate = result.estimate
        if estimate is None or not estimate.sd:
            reason = "one seed: the spread is unknown" if estimate and estimate.n == 1 else "no spread over seeds"
            rows.append([result.contrast.label, str(estimate.n if estimate else 0), "–", "–", reason])
            continue
        least = smallest_effect(estimate.n)
        needed = seeds_needed(estimate.mean / estimate.sd)
        size = "–" if least is None else amount(results.metric, least * estimate.sd)
        spread = amount(results.metric, estimate.sd)
        rows.append([result.contrast.label, str(estimate.n), spread, size, str(needed) if needed else "more than 500"])
    if rows:
        label = unit(results.metric)
        caption = (
            f"Effects on {results.metric}{f' in {label}' if label else ''} by the paired t-test at 5 %, power 80 %, "
            f"taking the "
            "observed spread of paired differences as true. The last column is what the observed effect would need."
        )
        columns = ["comparison", "seeds", "sd of differences", "smallest effect found", "seeds for the observed effect"]
        blocks.append(Table("power", caption, columns, rows))
    if shown:
        least_seeds = seeds_for_exact(len(shown), results.alpha)
        blocks.append(
            Prose(
                f"The exact test adjusted over {len(shown)} comparisons can reach {results.alpha:g} from "
                f"{least_seeds} seeds on; "
                f"this report has at most {max(len(r.seeds) for r in shown)} paired seeds a comparison."
            )
        )
    else:
        blocks.append(Prose("Nothing is compared, so there is no power to state."))
    return blocks


def versions_section(results: Results) -> list[Block]:
    """Section 7: what differs between arms, and the code and machines that made the runs."""
    blocks: list[Block] = [Heading("7. Config and code")]
    if results.warnings:
        blocks.append(Prose("**Compared in spite of:**"))
        blocks.append(Bullets(results.warnings))
    differing = config_differences(results.runs.usable)
    arms = results.runs.usable.arms
    if differing:
        rows = [[arm, *(str(values.get(arm, "–")).lower() for values in differing.values())] for arm in arms]
        columns = ["arm", *(key.removeprefix("algorithm.").removeprefix("techniques.") for key in differing)]
        blocks.append(Table("config", "Config keys in which arms differ at the same seed.", columns, rows))
    else:
        blocks.append(Prose("The arms do not differ in any config key."))
    rows = []
    for code, names in code_versions(results.runs.usable).items():
        of = [run for run in results.runs.usable if run.name in names]
        first = of[0].record
        dirty = f", uncommitted changes {str(first['git_dirty_hash'])[:12]}" if first.get("git_dirty_hash") else ""
        versions = ", ".join(f"{k} {v}" for k, v in (first.get("versions") or {}).items())
        hardware = ", ".join(sorted({str(run.record.get("hardware")) for run in of}))
        rows.append([code[:12], str(len(of)), f"{str(first.get('git_commit'))[:12]}{dirty}", versions, hardware])
    caption = "Code that the runs were made by; one row, or the arms would not be compared."
    blocks.append(Table("code", caption, ["code", "runs", "commit", "versions", "hardware"], rows))
    return blocks


def registration(results: Results, late: str | None) -> list[Block]:
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
    return [Bullets(lines)] if lines else []


def commands_section(results: Results, command: str) -> list[Block]:
    """Section 8: how to make the runs and this report again."""
    return [Heading("8. Commands"), Code("\n".join((train_command(results.runs), command)))]


def train_command(runs: Runs) -> str:
    """The multirun that makes these runs, from the overrides that each was started with.

    A key that they were started with different values of is swept over; a study brings its arms itself.
    """
    values: dict[str, list[str]] = {}
    for run in runs:
        file = run.folder / "overrides.txt"
        for override in file.read_text().splitlines() if file.is_file() else []:
            key, _, value = override.partition("=")
            if key != "seed" and not key.startswith("logger") and value not in values.setdefault(key, []):
                values[key].append(value)
    if "+study" in values:
        values.pop("study.arm", None)
    values["seed"] = [str(seed) for seed in runs.seeds]
    overrides = [f"{key}={','.join(of)}" for key, of in values.items() if of]
    return " ".join(["python -m dapo_lit.train -m", *map(shlex.quote, overrides)])
