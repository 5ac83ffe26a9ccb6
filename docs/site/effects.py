"""What each technique is worth, and where: the parts of README and docs/findings.md that are made of packed cells.

Four tasks have all combinations of the techniques, or half of them, on twelve base policies. A comparison is bold
where docs/evidence.md decides it, so that the pages cannot disagree.
"""

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np
import pooled
from around import DYNAMIC, SOFT
from cells import ROOT, between, cells, main_effects, on_accuracy, points, ratio
from claims import judged
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from ablations.compare.contrasts import Contrast, Effect, difference
from ablations.compare.equal_budget import at_equal_tokens
from ablations.compare.statistics import Estimate, holm, t_interval
from ablations.designs import Arm, read_arm
from ablations.figures.style import FAINT, INK, PETROFF6, Drawing, new_figure, title
from ablations.read.curves import TRAINING_ACCURACY
from ablations.read.outcomes import amount
from ablations.read.run import Run
from ablations.techniques import DAPO, NAIVE_GRPO, REGISTER

FIGURE = ROOT / "docs" / "figures" / "contexts.svg"
TASKS = {
    "sums": "factorial_joint",
    "programs": "factorial_half_programs",
    "parity": "factorial_half_parity",
    "calculator": "factorial_half_calculator",
}
SUMS = TASKS["sums"]
GRPO, WHOLE = Arm(NAIVE_GRPO).name, Arm(DAPO).name
WITHOUT_DYNAMIC = Arm(DAPO - {DYNAMIC}).name
ORDER = pooled.ORDER


def whole(task: str) -> Effect:
    """DAPO minus GRPO."""
    return between(TASKS[task], WHOLE, GRPO)


def alone(technique: str) -> Effect:
    """A technique added to GRPO, on sums."""
    return between(SUMS, Arm(NAIVE_GRPO | {technique}).name, GRPO)


def around(technique: str) -> Effect:
    """DAPO with a technique minus DAPO without it, on sums: the mean over sets of base policies."""
    return pooled.as_effect("sums", technique)


def mean(task: str, technique: str) -> Effect:
    """A technique's main effect: over all combinations of the others."""
    return on_accuracy(TASKS[task], main_effects(TASKS[task])[technique])


def where(technique: str, other: str, place: str, folder: str = SUMS) -> Effect:
    """A technique's mean effect over the combinations in which another is on or off; place `gap`: on minus off."""
    arms = [arm for arm in cells(folder).arms if place == "gap" or (other in read_arm(arm).on) == (place == "on")]
    size = (4 if place == "gap" else 2) / len(arms)
    signs = {arm: 1 if technique in read_arm(arm).on else -1 for arm in arms}
    if place == "gap":
        signs = {arm: sign if other in read_arm(arm).on else -sign for arm, sign in signs.items()}
    return on_accuracy(folder, Contrast("", technique, technique, {arm: size * sign for arm, sign in signs.items()}))


@cache
def decided() -> frozenset[tuple[str, str]]:
    """(folder, technique) of the main effects on accuracy that docs/evidence.md decides."""
    tests = [test for _, group in judged() for test in group if test.claim["outcome"] == "accuracy" and test.decided]
    return frozenset((test.study["folder"], test.claim["contrast"]) for test in tests)


def _with_tokens(task: str, effect: Effect, technique: str | None = None) -> str:
    folder, text = TASKS[task], points(effect.estimate)
    text = f"**{text}**" if (folder, technique) in decided() else text
    return f"{text} x{ratio(folder, effect.contrast):.2f}"


def found(order: Sequence[str] = ORDER) -> str:
    """Markdown: DAPO against GRPO in each task; each technique by what is on around it, and in each task."""
    places = ["sums: on GRPO", "in DAPO", "mean"]
    heads = ["with minus without", *places, *(task for task in TASKS if task != "sums")]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    whole_cells = [_with_tokens(task, whole(task)) for task in TASKS]
    lines.append("| **DAPO against GRPO** | " + " | ".join([whole_cells[0], "", "", *whole_cells[1:]]) + " |")
    for technique in order:
        row = [REGISTER[technique].label, points(alone(technique).estimate), points(around(technique).estimate)]
        row += [_with_tokens(task, mean(task, technique), technique) for task in TASKS]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def found_at_steps() -> str:
    """The same without dynamic sampling, which takes too many tokens to be compared at equal steps (curves.py)."""
    return found([technique for technique in ORDER if technique != DYNAMIC])


def welch(first: Effect, second: Effect) -> tuple[Estimate, float]:
    """The difference of two effects on different base policies: Welch's interval and p."""
    ours, theirs = first.differences, second.differences
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    ends = test.confidence_interval()
    gap = float(np.mean(ours) - np.mean(theirs))
    return Estimate(gap, float(ends.low), float(ends.high), len(ours), None), float(test.pvalue)


def between_tasks() -> str:
    """Markdown: the difference of each main effect between two tasks, Holm over the techniques of a pair of tasks."""
    lines = ["| | " + " | ".join(REGISTER[technique].label for technique in ORDER) + " |"]
    lines.append("|---" * (1 + len(ORDER)) + "|")
    for a, b in itertools.combinations(TASKS, 2):
        tests = [welch(mean(a, technique), mean(b, technique)) for technique in ORDER]
        adjusted = holm([p for _, p in tests])
        texts = [
            f"**{points(gap)}**" if p <= 0.05 else points(gap) for (gap, _), p in zip(tests, adjusted, strict=True)
        ]
        cells_of = [f"{text}, p = {p:.2g}" for text, p in zip(texts, adjusted, strict=True)]
        lines.append(f"| {a} less {b} | {' | '.join(cells_of)} |")
    return "\n".join(lines)


def to_act_on() -> str:
    """Markdown: what the techniques had to act on in each task, in the runs that do not treat long answers."""
    lines = [
        "| | answers truncated, first step | last step | groups mixed, first step | last step |",
        "|---|---|---|---|---|",
    ]
    for task, folder in TASKS.items():
        runs = [run for run in cells(folder) if not read_arm(run.arm).on & {SOFT, "overlong_filtering"}]
        texts = []
        for key in ("rollout/truncated_frac", "rollout/groups_mixed_frac"):
            texts += [f"{100 * _at(runs, key, step):.1f} %" for step in (1, -1)]
        lines.append(f"| {task} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _at(runs: Sequence[Run], key: str, step: int) -> float:
    """Mean of a metric over runs at a step, or at each run's last one (-1)."""
    return float(np.mean([run.series(key).iloc[-1] if step < 0 else run.series(key).loc[step] for run in runs]))


def wrong_groups(arm: str) -> tuple[Estimate, Estimate]:
    """In step 1 of an arm on sums: the share of groups that are all wrong, and of these the share that have advantages.

    Groups with unequal rewards that are not mixed are all wrong there: none is all right, which is checked.
    """
    runs = cells(SUMS).of(arm)
    wrong, right, mixed, equal = (
        np.array([float(run.series(key).loc[1]) for run in runs])
        for key in (
            "rollout/groups_all_wrong_frac",
            "rollout/groups_all_correct_frac",
            "rollout/groups_mixed_frac",
            "sampling/groups_equal_rewards_frac",
        )
    )
    if right.any():
        raise SystemExit(f"{arm}: groups that are all right have advantages too, so that the two cannot be told apart")
    return t_interval(wrong), t_interval((1 - mixed - equal) / wrong)


def mechanism() -> str:
    """Markdown: what soft punishment does to groups without a right answer, and to the length of answers."""
    lines = ["| on sums | mean length at step 1 | 2 | 4 | 8 | 16 | written at 16 |", "|---|---|---|---|---|---|---|"]
    for arm in (GRPO, Arm(NAIVE_GRPO | {SOFT}).name, WITHOUT_DYNAMIC, WHOLE):
        runs = cells(SUMS).of(arm)
        lengths = [f"{_at(runs, 'rollout/length_mean', step):.1f}" for step in (1, 2, 4, 8, 16)]
        written = f"{100 * _at(runs, 'task/steps_frac', 16):.0f} %"
        lines.append(f"| `{arm}` | {' | '.join([*lengths, written])} |")
    return "\n".join(lines)


def mechanism_words() -> str:
    """The sentences of the mechanism, with their numbers."""
    wrong, advantages = wrong_groups(WITHOUT_DYNAMIC)
    runs = cells(SUMS).of(WITHOUT_DYNAMIC)
    start, least = _at(runs, "rollout/length_mean", 1), _at(runs, "rollout/length_mean", 4)
    return (
        "A length penalty teaches groups without a right answer to be short. On sums "
        f"{100 * wrong.mean:.0f} % of the groups of the first step are all wrong; in {100 * advantages.mean:.0f} % of "
        "these soft punishment makes rewards differ, and their short wrong answers are reinforced. In DAPO without "
        f"dynamic sampling, answers shrink from {start:.0f} to {least:.0f} tokens by step 4. Dynamic sampling drops "
        "exactly these groups."
    )


BUDGETS = (20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000)
MASKED = "dapo@dynamic_sampling.max_rounds=1"
REPLAYED = f"{MASKED}@dynamic_sampling.on_exhausted=replay"
CUT = "dapo@dynamic_sampling.pass_rate_margin=0.2"
NAMES = {WHOLE: "refilled (DAPO)", MASKED: "masked", REPLAYED: "replayed", CUT: "cut", WITHOUT_DYNAMIC: "off"}
AT_EQUAL = ((WHOLE, WITHOUT_DYNAMIC), (MASKED, WITHOUT_DYNAMIC), (WHOLE, MASKED), (WHOLE, REPLAYED), (WHOLE, CUT))
TASKS_AT_EQUAL = {"sums": "joint", "sums, groups of four": "sparse", "programs": "programs"}


def equal_tokens() -> str:
    """Markdown: training accuracy where both sides have generated as many tokens, and held out at the end."""
    names = [f"{budget // 1000}k" for budget in BUDGETS]
    lines = [f"| | {' | '.join(names)} | held out, at the end |", "|---|" + "---|" * (len(names) + 1)]
    for task, name in TASKS_AT_EQUAL.items():
        folder = f"cheaper_sampling/{name}"
        runs = cells(folder)
        for treated, control in AT_EQUAL[:3]:
            contrast = difference("", "", None, treated, control)
            curve = dict(at_equal_tokens(runs, contrast, TRAINING_ACCURACY, BUDGETS))
            gaps = [points(curve[budget]) if budget in curve else "" for budget in map(float, BUDGETS)]
            held_out = points(between(folder, treated, control, one_set=True).estimate)
            lines.append(f"| {task}: {NAMES[treated]} less {NAMES[control]} | {' | '.join(gaps)} | {held_out} |")
    return "\n".join(lines)


def held_out_at_equal_tokens() -> str:
    """Markdown: every difference of `cheaper_sampling` in held-out accuracy at its budget, p unadjusted."""
    lines = ["| | " + " | ".join(TASKS_AT_EQUAL) + " |", "|---|" + "---|" * len(TASKS_AT_EQUAL)]
    for treated, control in AT_EQUAL:
        texts = []
        for name in TASKS_AT_EQUAL.values():
            folder = f"cheaper_sampling/{name}"
            known = {treated, control} <= set(cells(folder).arms)
            effect = between(folder, treated, control, one_set=True) if known else None
            texts.append(f"{points(effect.estimate)}, p = {effect.p:.2g}" if effect else "")
        lines.append(f"| {NAMES[treated]} less {NAMES[control]} | {' | '.join(texts)} |")
    return "\n".join(lines)


def mean_at_equal_tokens() -> str:
    """Markdown: the mean effect of dynamic sampling on training accuracy, along the tokens that all bases reach."""
    lines = ["| | tokens generated, with and without: difference in training accuracy |", "|---|---|"]
    for task, folder in TASKS.items():
        curve = at_equal_tokens(cells(folder), main_effects(folder)[DYNAMIC], TRAINING_ACCURACY)
        lines.append(f"| {task} | " + "; ".join(f"{tokens / 1000:.0f}k: {points(gap)}" for tokens, gap in curve) + " |")
    return "\n".join(lines)


LOOKS = {
    "on GRPO": ("o", PETROFF6[0]), "mean": ("D", INK), "in DAPO": ("s", PETROFF6[2]),
    "sums": ("D", INK), "programs": ("^", PETROFF6[3]), "parity": ("v", PETROFF6[1]), "calculator": ("o", PETROFF6[0]),
}  # fmt: skip
"""Mark and colour of each place of a technique, and of each task."""
Rows = list[list[tuple[str, Effect]]]


def contexts() -> Figure:
    """Each technique on sums by what is on around it, and in each task."""
    places: Rows = [[("mean", whole("sums"))]]
    places += [[("on GRPO", alone(t)), ("mean", mean("sums", t)), ("in DAPO", around(t))] for t in ORDER]
    tasks: Rows = [[(task, whole(task)) for task in TASKS], *([(task, mean(task, t)) for task in TASKS] for t in ORDER)]
    drawn, grid = new_figure(2, 1, width=4.2, height=6.8)  # one above the other: readable at a phone's width
    names = ["DAPO against GRPO", *(REGISTER[technique].label for technique in ORDER)]
    for axes, rows, head in zip(grid[:, 0], (places, tasks), ("on sums, by place", "mean, by task"), strict=True):
        _forest(axes, rows)
        title(axes, head, "", "points of held-out accuracy")
        axes.set_yticks(range(len(names)), names[::-1])
    return drawn


def _forest(axes: Axes, rows: Rows) -> None:
    """Rows from the top, each with its effects below each other: marks with their intervals."""
    axes.axvline(0, color=FAINT, lw=1, zorder=1)
    for place, row in enumerate(reversed(rows)):
        for lane, (name, effect) in enumerate(row):
            low, mid, high = (100 * float(x) for x in (effect.estimate.low, effect.estimate.mean, effect.estimate.high))
            y = place + 0.72 / len(row) * ((len(row) - 1) / 2 - lane)
            axes.plot([low, high], [y, y], color=LOOKS[name][1], lw=1.2)
            axes.plot(mid, y, LOOKS[name][0], color=LOOKS[name][1], ms=4, label=name if place == 0 else None)
    axes.legend(loc="lower right", handlelength=1, fontsize=7, frameon=False)
    axes.set_ylim(-0.6, len(rows) - 0.4)


def figure() -> str:
    """The figure as SVG."""
    return Drawing("contexts", "", "", contexts()).svg


def described() -> str:
    """Markdown: the figure, with its numbers as its description."""

    def short(effect: Effect) -> str:
        return amount(TRAINING_ACCURACY, effect.estimate.mean, signed=True)

    shown = [f"{REGISTER[t].label} {short(alone(t))} on GRPO, {short(around(t))} in DAPO" for t in ORDER]
    return (
        f"![Points on sums: {'; '.join(shown)}](figures/contexts.svg)\n\n*Above: a technique added to GRPO, its "
        "mean over all combinations, and in DAPO (the mean over sets of base policies). Below: the means by task.*"
    )
