"""The cost of each technique: updates, tokens and seconds used, and needed to its control's level."""

from collections.abc import Sequence

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.equal_budget import BUDGETS, Needed, costs, per_step_metric
from dapo_lit.study.figures.style import contrast_name
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results

COLUMNS = ["comparison", "budget", "used", "needed to its control's level", "difference at equal budget"]


def cost_table(results: Results, found: Sequence[Contrast]) -> list[Part]:
    """Updates, tokens and seconds: used, needed to the control's level, and the difference at equal budget."""
    key = per_step_metric(results.runs, results.metric)
    if key is None:
        return [
            f"**Cost.** Nothing is said at equal budget: neither {in_words(results.metric)} nor the training accuracy "
            "in its place was measured at every step (`evaluation.every=1`)."
        ]
    rows = []
    for contrast in found:
        for axis, cost in costs(results.runs, contrast, key).items():
            difference = "–"
            if at := cost.at_equal:
                difference = amount(key, at.mean, signed=True)
                if at.low is not None:
                    difference += f" [{amount(key, at.low, signed=True)}, {amount(key, at.high, signed=True)}]"
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
    text = f"**Cost.** Budgets with and without each technique, read off {in_words(key)}:"
    return [text, Table("cost", caption, COLUMNS, rows)] if rows else []


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
