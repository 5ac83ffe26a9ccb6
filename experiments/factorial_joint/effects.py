"""Main effects and interactions of the techniques on held-out accuracy: the tables of this page and of the half's.

python experiments/factorial_joint/effects.py                                         # all 32 combinations
python experiments/factorial_joint/effects.py experiments/factorial_half_joint/runs   # the half before it
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean

import numpy as np

from ablations.compare.contrasts import Contrast, compare, contrasts
from ablations.compare.equal_budget import at_equal_tokens, costs
from ablations.compare.statistics import Estimate, holm, per_base
from ablations.designs import read_arm
from ablations.read.curves import TRAINING_ACCURACY
from ablations.read.outcomes import bases, primary_metric, scores
from ablations.read.runs import Runs, load
from ablations.report.page_one import needed_text
from ablations.techniques import REGISTER

HERE = Path(__file__).parent
ORDERS = {"none": 0, "main effects": 1, "and interactions of two": 2, "and of three": 3}
"""Models of the arms' means: the highest order of their terms."""
ALPHA = 0.025
"""Of each of the two registered families; the others are exploratory."""
FAMILIES = ("main effects", "interactions", "ladder", "left out of DAPO")


def points(found: Estimate | None) -> str:
    """An estimate in points with its interval."""
    return "-" if found is None else f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


@dataclass(frozen=True)
class Study:
    """The outcomes of a study's runs."""

    runs: Runs
    metric: str
    scores: Mapping[str, Mapping[int, float]]
    base_of: Mapping[int, str]

    @classmethod
    def load(cls, folder: Path) -> "Study":
        runs = load(folder).usable
        metric = primary_metric(runs, None)
        return cls(runs, metric, scores(runs, metric), bases(runs))

    def value(self, contrast: Contrast) -> Estimate | None:
        return compare(contrast, self.scores, self.base_of).estimate


def show(study: Study, found: Sequence[Contrast], family: str) -> None:
    """Prints a family of comparisons."""
    print(family)
    results = [compare(contrast, study.scores, study.base_of) for contrast in found]
    for one, adjusted in zip(results, holm([one.p for one in results]), strict=True):
        tokens = costs(study.runs, one.contrast, TRAINING_ACCURACY).get("tokens_generated")
        by_base = ", ".join(f"{100 * value:+.1f}" for value in one.by_base.values())
        verdict = "exploratory"
        if family in FAMILIES[:2]:
            verdict = "decided" if adjusted <= ALPHA else "undecided"
        print(
            f"  {one.contrast.label}: {points(one.estimate)}, p = {one.p:.4f} ({adjusted:.4f}), {verdict}; "
            f"by base {by_base}"
            + (f"; tokens used x{tokens.used:.2f}, needed {needed_text(tokens.needed)}" if tokens else "")
        )
        for budget, gap in at_equal_tokens(study.runs, one.contrast, TRAINING_ACCURACY) if tokens else ():
            print(f"    at {budget:,.0f} tokens {points(gap)}")


def given(main: Contrast, interactions: Sequence[Contrast], on: Collection[str]) -> Contrast:
    """The effect of a technique where, of the techniques it has these interactions with, those in `on` are on and the
    others off: its main effect, plus or minus each interaction."""
    weights = dict(main.weights)
    for one in interactions:
        (other,) = set(one.label.split(" x ")) - {main.label}
        for arm, weight in one.weights.items():
            weights[arm] += (1 if other in on else -1) * weight
    return Contrast("conditional", main.label, main.technique, weights)


def without_one_arm(effects: Mapping[str, Contrast], interaction: Contrast, arm: str) -> Contrast:
    """The least-squares estimate of an interaction next to the main effects when one arm has a level of its own."""
    arms = list(interaction.weights)
    columns = [[np.sign(one.weights[name]) for name in arms] for one in (*effects.values(), interaction)]
    design = np.column_stack([np.ones(len(arms)), *columns, [float(name == arm) for name in arms]])
    row = 2 * np.linalg.pinv(design)[len(effects) + 1]  # with codes of +-1, an effect is twice its coefficient
    return Contrast("without one arm", interaction.label, None, dict(zip(arms, map(float, row), strict=True)))


def left_out_error(study: Study) -> dict[str, float]:
    """Root mean square error, in points, of models that are fitted to all base policies but one and predict the arms of
    that one, each arm as its distance from the mean of the base policy's arms."""
    arms = study.runs.arms
    bases = [study.base_of[seed] for seed in study.runs.seeds]
    table = np.array([per_base([study.scores[arm][seed] for seed in study.runs.seeds], bases) for arm in arms]).T
    table -= table.mean(axis=1, keepdims=True)
    signs = {name: np.array([1.0 if name in read_arm(arm).on else -1.0 for arm in arms]) for name in REGISTER}
    errors = {}
    for label, order in ORDERS.items():
        terms = [np.ones(len(arms))]
        for size in range(1, order + 1):
            terms += [np.prod([signs[name] for name in names], axis=0) for names in combinations(signs, size)]
        design = np.column_stack(terms)
        onto = design @ np.linalg.pinv(design)
        others = [onto @ np.delete(table, row, axis=0).mean(axis=0) for row in range(len(table))]
        errors[label] = 100 * float(np.sqrt(np.mean(np.square(table - np.array(others)))))
    everything = [np.delete(table, row, axis=0).mean(axis=0) for row in range(len(table))]
    errors["the arms' means"] = 100 * float(np.sqrt(np.mean(np.square(table - np.array(everything)))))
    return errors


def main() -> None:
    study = Study.load(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "runs")
    print(f"{study.metric}, {len(study.runs)} runs, seeds {', '.join(map(str, study.runs.seeds))}")
    for arm in sorted(study.runs.arms, key=lambda name: mean(study.scores[name].values())):
        print(f"  {100 * mean(study.scores[arm].values()):5.1f}  {arm}")
    found = contrasts(study.runs.arms, "dapo")
    families = {family: [one for one in found if one.family == family] for family in FAMILIES}
    for family, listed in families.items():
        show(study, listed, family)
    effects = {one.label: one for one in families["main effects"]}
    interactions = families["interactions"]

    print("a technique with the other of an interaction on; off")
    for one in interactions:
        pair = one.label.split(" x ")
        for technique, other in (pair, pair[::-1]):
            on, off = (study.value(given(effects[technique], [one], states)) for states in ([other], []))
            print(f"  {technique} by {other}: {points(on)}; {points(off)}")

    lowest = min(study.runs.arms, key=lambda arm: mean(study.scores[arm].values()))
    print(f"interactions, one at a time, with a level of its own for {lowest}")
    for one in interactions:
        leaning = compare(without_one_arm(effects, one, lowest), study.scores, study.base_of)
        print(f"  {one.label}: {points(study.value(one))} -> {points(leaning.estimate)}, p = {leaning.p:.4f}")
    print("arms of a base policy predicted from the others, root mean square error in points")
    for label, error in left_out_error(study).items():
        print(f"  {label}: {error:.2f}")
    predict(study, effects, interactions)


def predict(study: Study, effects: Mapping[str, Contrast], interactions: Sequence[Contrast]) -> None:
    """Prints the effects of other studies, on other base policies, as this one predicts them and as measured."""
    print("effects in other studies: predicted with interactions; by the main effect; measured")
    errors = []
    for name in ("table1_joint", "four_techniques_joint"):
        other_study = Study.load(HERE.parent / name / "runs")
        for one in contrasts(other_study.runs.arms, other_study.runs.arms[0]):
            if one.technique and one.pair and one.family != "alone on GRPO":  # the first rung once more
                own = [each for each in interactions if one.technique in each.label.split(" x ")]
                guesses = [
                    study.value(given(effects[one.technique], own, read_arm(one.pair[1]).on)),
                    study.value(effects[one.technique]),
                ]
                seen = other_study.value(one)
                print(f"  {name}, {one.family}, {one.label}: {'; '.join(map(points, [*guesses, seen]))}")
                errors.append([guess.mean - seen.mean for guess in guesses] + [-seen.mean])
    with_them, main_only, zero = 100 * np.sqrt(np.mean(np.square(errors), axis=0))
    print(
        f"  {len(errors)} effects, root mean square error: {with_them:.2f}, {main_only:.2f}; predicting 0: {zero:.2f}"
    )


if __name__ == "__main__":
    main()
