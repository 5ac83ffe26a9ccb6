"""What benchmarks/decision_rule.py found about skewed effects, and how skewed the measured ones are."""

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
