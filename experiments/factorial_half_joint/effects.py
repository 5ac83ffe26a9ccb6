"""Main effects and interactions of the five techniques on held-out accuracy: the tables of the page, and its figure.

Run in the repository: `python experiments/factorial_half_joint/effects.py`.
"""

from pathlib import Path

from dapo_lit.study.compare.contrasts import Comparison, compare_all, contrasts
from dapo_lit.study.compare.price import price
from dapo_lit.study.read.outcomes import bases, primary_metric, scores
from dapo_lit.study.read.runs import load

HERE = Path(__file__).parent
FAMILIES = ("main effects", "interactions")
ALPHA = 0.025
"""Of each of the two families."""


def points(comparison: Comparison) -> str:
    """The estimate in points with its interval."""
    found = comparison.estimate
    if found is None:
        return "-"
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def main() -> None:
    runs = load(HERE / "runs").usable
    metric = primary_metric(runs, None)
    table, base_of = scores(runs, metric), bases(runs)
    print(f"{metric}, {len(runs)} runs, seeds {', '.join(map(str, runs.seeds))}")
    for arm in runs.arms:
        print(f"  {100 * sum(table[arm].values()) / len(table[arm]):5.1f}  {arm}")
    for family in FAMILIES:
        print(family)
        found = [one for one in contrasts(runs.arms) if one.family == family]
        for one in compare_all(found, table, base_of, family):
            tokens = price(runs, one.contrast, metric)["tokens"]
            at_equal = tokens.at_equal
            equal = (
                "-"
                if at_equal is None
                else f"{100 * at_equal.mean:+.1f} [{100 * at_equal.low:+.1f}, {100 * at_equal.high:+.1f}]"
            )
            by_base = ", ".join(f"{100 * value:+.1f}" for value in one.by_base.values())
            verdict = "decided" if one.decided(ALPHA) else "undecided"
            print(
                f"  {one.contrast.label}: {points(one)}, p = {one.p:.4f} ({one.p_holm:.4f}), {verdict}; "
                f"by base {by_base}; tokens x {tokens.ratio:.2f}, at equal tokens {equal}"
            )


if __name__ == "__main__":
    main()
