"""What benchmarks/decision_rule.py found about skewed effects, how skewed the measured ones are, and what
benchmarks/decide_calibration.py found about the regret that `decide` says."""

import json

from cells import ROOT, between
from scipy import stats

WORDS = {"normal": "symmetric", "exponential": "exponential", "one in five": "one base policy in five takes off"}


def skewed_effects() -> str:
    """Markdown: how often the rule decides where the mean effect is 0, and with whom."""
    found = json.loads((ROOT / "benchmarks" / "results" / "decision_rule.json").read_text(encoding="utf-8"))[
        "skewed_effects"
    ]
    lines = [
        "| effects of mean 0 over base policies | tau / sigma | 12 bases: decide | with most bases | "
        "spending: decide | with most bases | sign test: decide |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rules in found.items():
        kind, tau = name.split(", tau ")
        fixed, spending = (
            [f"{rules[rule][key]:.1%}" for key in ("decide", "with_most")] for rule in ("12 bases", "spending")
        )
        lines.append(
            f"| {WORDS[kind]} | {tau} | {' | '.join([*fixed, *spending])} | {rules['sign test']['decide']:.1%} |"
        )
    measured = float(stats.skew(between("factorial_joint", "dapo", "dapo-dynamic_sampling", one_set=True).differences))
    lines += [
        "",
        f"Measured: the effect of dynamic sampling on DAPO has a skewness of {measured:.1f} over the twelve base "
        "policies of `factorial_joint`; an exponential distribution has 2, the last kind 1.5.",
    ]
    return "\n".join(lines)


EFFECTS = {"one in five": "one in five takes off", "one in six": "one in six takes off"}


def skewed_statistics() -> str:
    """Markdown: how often each statistic rejects the truth, at 12 bases, and the coverage of several looks."""
    found = json.loads((ROOT / "benchmarks" / "results" / "decision_rule.json").read_text(encoding="utf-8"))
    rows, covers = found["statistics"], found["looks_cover"]
    names = list(next(iter(rows.values())))
    lines = [
        f"| effects over base policies | noise | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for name, rejected in rows.items():
        kind, noise = name.split(", noise ")
        shown = [f"{rejected[statistic]:.1%}" for statistic in names]
        lines.append(f"| {EFFECTS.get(kind, kind)} | {noise} | {' | '.join(shown)} |")
    lines += [
        "",
        f"| stopped at the verdict | {' | '.join(EFFECTS.get(kind, kind) for kind in covers)} |",
        f"|---|{'---|' * len(covers)}",
    ]
    for claim, words in (("mean", "interval of the mean covers"), ("median", "interval of the median base covers")):
        lines.append(f"| {words} | {' | '.join(f'{cover[claim]:.0%}' for cover in covers.values())} |")
    return "\n".join(lines)


def regret_said() -> str:
    """Markdown: regret and gain that `decide` says and those that there are, on tasks that the prior does not know."""
    path = ROOT / "benchmarks" / "results" / "decide_calibration.json"
    found = json.loads(path.read_text(encoding="utf-8"))["left_out"]
    lines = [
        "| pairs | regret found | said | said / found | without a prior on noise | gain of four more: said / found | "
        "measured effects: said / found |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for pairs, row in found.items():
        drawn, measured = row["drawn"], row["measured"]
        lines.append(
            f"| {pairs} | {drawn['found']:.2f} | {drawn['said']:.2f} | {drawn['said'] / drawn['found']:.2f} | "
            f"{row['said_without'] / drawn['found']:.2f} | {drawn['gain_said'] / drawn['gain_found']:.2f} | "
            f"{measured['said'] / measured['found']:.2f} |"
        )
    low, high = found["2"]["ratio_of_a_task"]
    lines += [
        "",
        "Points of accuracy, means over eleven tasks. Of a single task the ratio at two pairs is "
        f"{low:.1f} to {high:.1f}: no prior knows how noisy a new task is.",
    ]
    return "\n".join(lines)
