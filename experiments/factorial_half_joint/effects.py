"""Main effects and interactions of the five techniques on held-out accuracy: the tables of the page.

Run in the repository: `python experiments/factorial_half_joint/effects.py`.
"""

from pathlib import Path
from statistics import mean

from dapo_lit.study.arm_names import read_arm
from dapo_lit.study.compare.contrasts import Comparison, Contrast, compare, compare_all, contrasts
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


def given(main: Contrast, interaction: Contrast, on: bool) -> Contrast:
    """The effect of a technique with the other one of an interaction on, or off."""
    half = 0.5 if on else -0.5
    weights = {arm: weight + half * interaction.weights[arm] for arm, weight in main.weights.items()}
    return Contrast("conditional", main.label, main.technique, weights)


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
            tokens = price(runs, one.contrast, metric)["tokens_generated"]
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
    print("a technique with the other of a decided interaction on; off")
    found = contrasts(runs.arms)
    alone = {one.label: one for one in found if one.family == "main effects"}
    between = [one for one in found if one.family == "interactions"]
    for one in compare_all(between, table, base_of, "interactions"):
        pair = one.contrast.label.split(" x ")
        for technique, other in (pair, pair[::-1]) if one.decided(ALPHA) else ():
            on, off = (compare(given(alone[technique], one.contrast, state), table, base_of) for state in (True, False))
            print(f"  {technique} by {other}: {points(on)}; {points(off)}")
    print("effects in other studies, on other base policies: predicted from the tables above; measured")
    for study in ("table1_joint", "four_techniques_joint"):
        others = load(HERE.parent / study / "runs").usable
        measured, of = scores(others, primary_metric(others, None)), bases(others)
        for one in (one for one in contrasts(others.arms, others.arms[0]) if one.technique and one.pair):
            rest = read_arm(one.pair[1]).on
            value = mean(compare(alone[one.technique], table, base_of).differences)
            for both in between:
                pair = both.label.split(" x ")
                if one.technique in pair:
                    (other,) = set(pair) - {one.technique}
                    value += (0.5 if other in rest else -0.5) * mean(compare(both, table, base_of).differences)
            print(f"  {study}, {one.family}, {one.label}: {100 * value:+.1f}; {points(compare(one, measured, of))}")


if __name__ == "__main__":
    main()
