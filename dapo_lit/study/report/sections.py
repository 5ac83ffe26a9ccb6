"""The sections of a report after its first page: outcomes of all arms, and the runs themselves."""

from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.figures.effect_figures import effects_figure, interactions_figure, outcomes_figure
from dapo_lit.study.read.health import findings
from dapo_lit.study.read.outcomes import amount, outcome
from dapo_lit.study.report.document import Part, Table, bullets
from dapo_lit.study.report.results import Results


def arms_section(results: Results) -> list[Part]:
    """Section 2: the outcome of every run and arm, the effects by seed and by base policy, interactions."""
    key = results.metric
    points = next((o.points for run in results.runs.usable if (o := outcome(run, key))), 1)
    parts: list[Part] = ["## 2. Outcomes", outcomes_figure(results.scores, key, points), _by_arm(results)]
    for family in dict.fromkeys(r.contrast.family for r in results.comparisons):
        if family != "interactions" and len(results.of(family)) > 1:
            drawing = effects_figure(results.comparisons, key, family)
            parts += [drawing] if drawing else []
    heat = interactions_figure(results.comparisons, key)
    return [*parts, *([heat] if heat else []), *_by_base(results)]


def _by_arm(results: Results) -> Table:
    key, rows = results.metric, []
    for arm in results.runs.usable.arms:
        if seeds := results.scores.get(arm):
            mean = t_interval(list(seeds.values()))
            ends = [amount(key, end) for end in (mean.mean, mean.low, mean.high)]
            rows.append([arm, str(mean.n), *ends])
    caption = f"{key}: mean over runs of the last checkpoints, with its 95 % t-interval over seeds."
    return Table("outcomes", caption, ["arm", "runs", "mean", "low", "high"], rows)


def _by_base(results: Results) -> list[Part]:
    """Each comparison of the family at each base policy, where bases have several seeds."""
    shown = [r for r in results.of(results.family) if 1 < len(r.by_base) < len(r.seeds)]
    if not shown:
        return []
    bases = sorted({base for r in shown for base in r.by_base}, key=lambda base: (len(base.split()[0]), base))
    rows = [[r.contrast.label, *(amount(results.metric, r.by_base.get(b), signed=True) for b in bases)] for r in shown]
    caption = f"Mean difference in {results.metric} at each base policy; the bases are n."
    return [Table("by_base", caption, ["comparison", *(f"base {base}" for base in bases)], rows)]


def runs_section(results: Results, late: str | None) -> list[Part]:
    """Section 3: the registration and what was edited since; missing and unhealthy runs."""
    plan, lines = results.plan, []
    if plan:
        promised: dict[str, object] = {"primary metric": plan.metric, "reference": plan.reference}
        promised |= {"seeds": ", ".join(map(str, plan.seeds)), "alpha": f"{plan.alpha}", "event": plan.event}
        lines.append("Registered: " + "; ".join(f"{key} {value}" for key, value in promised.items() if value) + ".")
    lines += [f"**Note:** {late}."] if late else []
    lines += [f"**Edited after registration:** {edit}." for edit in results.edits]
    rows = [[f"{arm}/seed_{seed}", "missing", reason] for (arm, seed), reason in results.missing.items()]
    rows += [[folder, "unreadable", reason] for folder, reason in results.runs.unreadable.items()]
    for run in results.runs.usable:
        used = "not averaged" if run.spoilt(results.metric) else "kept"
        rows += [[run.name, used, finding] for finding in findings(run)]
    caption = "Unhealthy runs stay in every average unless marked; missing ones have no pair at their seed."
    health: Part = Table("health", caption, ["run", "", "reason"], rows) if rows else "No run is missing or unhealthy."
    return ["## 3. Registration and runs", *([bullets(lines)] if lines else []), health]
