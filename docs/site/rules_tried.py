"""What benchmarks/referee.py found of rules that keep or discard changes: table, figure, predictions with outcomes."""

from typing import Any

import numpy as np
from cells import ROOT
from matplotlib.figure import Figure
from measured import results

from ablations.figures.style import RC, Drawing, numbered

FIGURE = ROOT / "docs" / "figures" / "decide.svg"
TASKS = {"joint": "sums", "programs": "programs", "parity": "parity"}
SHOWN = {
    "other seeds": ("runs on other seeds, keep if higher", ("1 runs a side", "3 runs a side")),
    "pairs": ("pairs, keep if higher", ("1 pairs", "2 pairs", "3 pairs", "6 pairs")),
    "exact test": ("exact test over six pairs", ("alpha 0.05", "alpha 0.5")),
    "sequential test": ("the same, a look after every pair", ("alpha 0.5",)),
    "value": ("`decide`: price of a pair", ("share 0.1", "share 0.02", "share 0.005")),
    "value, flat prior": ("the same without a prior", ("share 0.02",)),
    "race by value": ("race by value", ("share 0.05",)),
    "halving": ("halving", ("3 rounds",)),
}
"""Family -> its name, and the settings of the table."""
DRAWN = {
    "other seeds": "other seeds",
    "pairs": "pairs",
    "exact test": "exact test",
    "value": "decide",
    "halving": "halving",
}
"""Family -> its name in the figure."""


def _rules(task: str) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = results("referee")["tasks"][task]["rules"]
    return found


def _setting(label: str) -> str:
    if label.startswith("share "):
        return f"{100 * float(label.removeprefix('share ')):g} % of its sd"
    return label.replace("1 runs", "1 run").replace("1 pairs", "1 pair")


def table() -> str:
    """Markdown: runs, regret and wrong decisions of the rules, by task."""
    lines = [
        f"| rule | {' | '.join(f'{name}: runs | regret | wrong' for name in TASKS.values())} |",
        "|---|" + "---:|---:|---:|" * len(TASKS),
    ]
    for family, (words, labels) in SHOWN.items():
        for label in labels:
            rows = [_rules(task)[family][label] for task in TASKS]
            cells = [f"{row['runs']:.0f} | {row['regret']:.1f} | {100 * row['wrong']:.0f} %" for row in rows]
            lines.append(f"| {words}, {_setting(label)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure() -> str:
    """The figure as SVG: regret against runs, a line a family."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        drawn = Figure(figsize=(4.4, 5.6), layout="constrained")
        panels = drawn.subplots(len(TASKS), 1, sharex=True)
        for panel, (task, name) in zip(panels, TASKS.items(), strict=True):
            for place, (family, words) in enumerate(DRAWN.items()):
                points = sorted(_rules(task)[family].values(), key=lambda row: row["runs"])
                look = numbered(place)
                panel.plot([p["runs"] for p in points], [p["regret"] for p in points], label=words, **look.line)
            panel.set_title(name)
            panel.set_ylim(0, None)
            panel.set_ylabel("regret (points)")
        panels[-1].set_xlabel("runs that one loop of all changes spends")
        drawn.align_ylabels()
        handles, labels = panels[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper left", ncols=3)
    return Drawing("decide", "", "", drawn).svg


def described() -> str:
    """Markdown: the figure, with its numbers as its description."""
    shown = []
    for task, name in TASKS.items():
        parts = []
        for family, words in DRAWN.items():
            marks = [f"{row['runs']:.0f}: {row['regret']:.1f}" for row in _rules(task)[family].values()]
            parts.append(f"{words} {', '.join(marks)}")
        shown.append(f"{name}, runs: regret; {'; '.join(parts)}")
    return (
        f"![Regret against runs. {'. '.join(shown)}](figures/decide.svg)\n\n*Distance in held-out accuracy to the best "
        "arm, and what a rule spends to get there; each line is a family of rules, each mark a setting.*"
    )


def predictions() -> str:
    """Markdown: what was predicted of the third task, and what came out."""
    found: Any = results("referee")["tasks"]["parity"]
    goals, errors, rules = found["goals"], found["standard_errors"], found["rules"]
    exact, pair = rules["exact test"]["alpha 0.05"], rules["pairs"]["1 pairs"]
    single, halving = rules["other seeds"]["1 runs a side"], rules["halving"]["3 rounds"]
    flat = rules["value, flat prior"]["share 0.02"]
    at_halving, at_flat = (_at("regret", rules["value"], row["runs"]) for row in (halving, flat))
    rows = [
        ("a third fewer wrong decisions than runs on other seeds, same runs", goals["fewer_wrong"] >= 1 / 3,
         f"{100 * goals['fewer_wrong']:.0f} % fewer (standard error {100 * errors['fewer_wrong']:.0f} %)"),
        ("no more regret than pairs, same runs", goals["regret_minus_pairs"] <= 0,
         f"{goals['regret_minus_pairs']:+.2f} points (standard error {errors['regret_minus_pairs']:.2f})"),
        ("the exact test keeps under 1 % of the harmful changes, and has more regret than one pair",
         exact["harmful_kept"] < 0.01 and exact["regret"] > pair["regret"],
         f"{100 * exact['harmful_kept']:.1f} % kept; regret {exact['regret']:.1f} and {pair['regret']:.1f}"),
        ("one pair has less regret than one run on another seed, for no more runs",
         pair["regret"] < single["regret"] and pair["runs"] <= single["runs"],
         f"{pair['regret']:.2f} and {single['regret']:.2f}; {pair['runs']:.1f} and {single['runs']:.1f} runs"),
        ("halving has less regret than `decide`, same runs", halving["regret"] < at_halving,
         f"{halving['regret']:.2f} and {at_halving:.2f}"),
        ("a flat prior changes the regret by less than 0.2 points", abs(flat["regret"] - at_flat) < 0.2,
         f"{flat['regret'] - at_flat:+.2f}"),
    ]  # fmt: skip
    lines = ["| | predicted of parity | came out | |", "|---|---|---|---|"]
    for number, (words, holds, shown) in enumerate(rows, 1):
        lines.append(f"| {number} | {words} | {shown} | {'holds' if holds else '**fails**'} |")
    return "\n".join(lines)


def _at(key: str, family: dict[str, dict[str, float]], runs: float) -> float:
    points = sorted(family.values(), key=lambda row: row["runs"])
    return float(np.interp(runs, [row["runs"] for row in points], [row[key] for row in points]))
