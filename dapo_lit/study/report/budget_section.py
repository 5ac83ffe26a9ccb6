"""What techniques cost: the table of page one, and the fourth section of a report."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.equal_budget import BUDGETS, Needed, costs, per_step_metric
from dapo_lit.study.figures.style import contrast_name
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import unit
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import signed_interval

QUESTION = "**At what cost?**"


def cost_table(results: Results, found: Sequence[Contrast]) -> list[Part]:
    """Updates, tokens and seconds: used, needed to the control's level, and the difference at equal budget."""
    key = per_step_metric(results.runs, results.metric)
    if key is None:
        return [
            f"{QUESTION} Nothing is said at equal budget: neither {in_words(results.metric)} nor the training accuracy "
            "in its place was measured at every step (`evaluation.every=1`)."
        ]
    rows = []
    for contrast in found:
        for axis, cost in costs(results.runs, contrast, key).items():
            difference = signed_interval(key, cost.at_equal) if cost.at_equal else "–"
            rows.append(
                [contrast_name(contrast), BUDGETS[axis], f"x{cost.used:.2f}", needed_text(cost.needed), difference]
            )
    caption = (
        "Budget of whole runs, with over without; how many times its control's budget a run needs to the level that "
        f"its control ends on; and the difference ({unit(key) or 'its unit'}) where both have used as much. Read off "
        f"{in_words(key)} at every step, on problems not visited before, pair by pair; geometric means and 95 % "
        't-intervals over base policies. "At least": in some pairs the run never gets there and counts with its whole '
        "budget. Generated tokens include those of discarded groups; seconds are those of the machine, with whatever "
        "else ran on it."
    )
    columns = ["comparison", "budget", "used", "needed to its control's level", "difference at equal budget"]
    text = f"{QUESTION} In {in_words(key)}, by the budget that with and without need:"
    return [text, Table("cost", caption, columns, rows)] if rows else []


def needed_text(found: Needed | None) -> str:
    """`x0.96 [0.56, 1.64]`; `at least x1.08 [0.75, –] (4 of 12 pairs never)` where some never reach the level; no
    number where most do not, since it would be a ratio of budgets."""
    if found is None:
        return "–"
    if 2 * found.never > found.pairs:
        return f"{found.never} of {found.pairs} pairs never"
    text = f"{'at least ' if found.never else ''}x{found.ratio:.2f}"
    if found.low is not None:
        text += f" [{found.low:.2f}, {'–' if found.high is None else f'{found.high:.2f}'}]"
    notes = [f"{found.never} of {found.pairs} pairs never"] if found.never else []
    notes += [f"{found.left_out} left out: no rise to reach"] if found.left_out else []
    return f"{text} ({'; '.join(notes)})" if notes else text


def budget_section(results: Results) -> list[Part]:
    """Section 4: tokens needed at each base policy, and reward against validation."""
    parts = [*_by_base(results), *_reward(results)]
    return ["## 4. Equal budget", *(parts or ["Nothing beyond the table of the first section."])]


def _by_base(results: Results) -> list[Part]:
    """Generated tokens to the control's level, base by base."""
    key, rows = per_step_metric(results.runs, results.metric), []
    for result in results.of(results.family) if key else ():
        cost = costs(results.runs, result.contrast, key).get("tokens_generated") if key else None
        if cost and cost.needed and len(cost.needed.by_base) > 1:
            each = ", ".join(f"{base}: x{ratio:.2f}" for base, ratio in sorted(cost.needed.by_base.items()))
            rows.append([contrast_name(result.contrast), each])
    caption = "Generated tokens needed to the control's level, in multiples of the control's, at each base policy."
    return [Table("cost_by_base", caption, ["comparison", "base policy: ratio"], rows)] if rows else []


def _reward(results: Results) -> list[Part]:
    """Whether training reward and the primary metric rise together."""
    rows = []
    for arm in results.runs.usable.arms:
        rhos = []
        for run in results.runs.of(arm):
            a, b = run.series("rollout/reward").align(run.series(results.metric), join="inner")
            if run.usable and len(a) > 2 and a.nunique() > 1 and b.nunique() > 1:
                rhos.append(float(stats.spearmanr(a, b).statistic))
        if rhos:
            rows.append([arm, f"{np.mean(rhos):.2f} ({min(rhos):.2f} to {max(rhos):.2f}) n={len(rhos)}"])
    if not rows or results.metric == "rollout/accuracy":
        return []
    caption = (
        f"Rank correlation over checkpoints of training reward (rollout/reward) with {results.metric}, mean over seeds "
        "(lowest to highest)."
    )
    return [Table("reward_correlation", caption, ["arm", "rank correlation"], rows)]
